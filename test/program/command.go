package program

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"scribe/internal/testkit/child"
)

// Exit codes: of a command that failed, and of one for which something was not available, which may be repeated.
const (
	exitFailed      = 1
	ExitUnavailable = 5
)

// Result is the result of a command.
type Result struct {
	Stdout, Stderr []byte
	Code           int
}

// Command is exec.CommandContext for a process that ends with the test binary, on Linux however that ends. A goroutine that ends while it
// is locked to its thread must not start the command: the thread ends, and the process with it.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = child.Attributes()
	return cmd
}

// Run runs a command to its end.
func Run(t testing.TB, stdin io.Reader, args ...string) Result {
	t.Helper()
	return RunWith(t, nil, stdin, args...)
}

// RunWith is Run with additional environment variables.
func RunWith(t testing.TB, env []string, stdin io.Reader, args ...string) Result {
	t.Helper()
	if err := seeSources(); err != nil {
		t.Fatalf("look at the sources of the program under test: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), WaitLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := Command(ctx, binary, args...)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("scribe %s did not end in time:\n%s", strings.Join(args, " "), stderr.Bytes())
	}
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("scribe %s: %v", strings.Join(args, " "), err)
	}
	return Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: cmd.ProcessState.ExitCode()}
}

// OK runs a command that must succeed and returns what it printed.
func OK(t testing.TB, stdin io.Reader, args ...string) []byte {
	t.Helper()
	r := Run(t, stdin, args...)
	if r.Code != 0 {
		t.Fatalf("scribe %s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return r.Stdout
}
