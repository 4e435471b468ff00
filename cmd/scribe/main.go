// Command scribe is the whole system in one binary: the servers, the host's agent, and the tools for users and operators.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	// A closed pipe is an ordinary end of a tail, and shows as a write error. SIGPIPE would end the process before it saves its
	// checkpoint.
	signal.Ignore(syscall.SIGPIPE)
	root := newRoot()
	err := root.ExecuteContext(ctx)
	if stdoutClosed(err) {
		err = nil
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "scribe: "+plainText(err))
	}
	stop()
	os.Exit(exitCode(err)) //nolint:gocritic // stop was called above; nothing else is deferred
}
