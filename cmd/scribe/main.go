// Command scribe is the whole system in one binary: the servers, the host's agent, and the tools of users and operators.
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
	// A closed pipe after a tail is an ordinary end, seen as an error of the write; the signal would end the process before it
	// has saved its checkpoint.
	signal.Ignore(syscall.SIGPIPE)
	root := newRoot()
	err := root.ExecuteContext(ctx)
	if unwanted(err) {
		err = nil
	}
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "scribe: "+plain(err))
	}
	stop()
	os.Exit(exitCode(err)) //nolint:gocritic // stop was called above; nothing else is deferred
}
