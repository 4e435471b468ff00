package program

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"scribe/internal/testkit/child"
)

// Process is a running server of the program under test, a command that follows something, or another program.
type Process struct {
	// Name is its command line.
	Name string
	// URL is the server's URL; set by Serve.
	URL string
	// Log is its output to standard error.
	Log *Log
	// Done is closed when it has ended; Err may be read after that.
	Done chan struct{}
	// Err says how it ended: nil for exit code 0.
	Err error

	t   testing.TB
	cmd *exec.Cmd
	// others are the other nodes of the cell that this process stands for, as its first node: they share its fate. See Nodes.
	others []*Process
	// stdout is read by who waits until one of the others is ready.
	stdout io.Reader
	// closes names the cell that is to be closed once the process is ready; "" = none.
	closes string
}

// Launch starts `scribe args...` with additional environment variables and does not wait for it. The reader is the standard output,
// which must be read.
func Launch(t testing.TB, env []string, args ...string) (*Process, io.Reader) {
	t.Helper()
	return LaunchUnder(t, nil, env, args...)
}

// LaunchUnder is Launch with a wrapper, such as `ip netns exec NAME`, before the program's command line. The wrapper must exec the program.
func LaunchUnder(t testing.TB, wrapper, env []string, args ...string) (*Process, io.Reader) {
	t.Helper()
	return LaunchBuild(t, binary, wrapper, env, args...)
}

// LaunchBuild is LaunchUnder for a build of the program: Binary or Older.
func LaunchBuild(t testing.TB, build string, wrapper, env []string, args ...string) (*Process, io.Reader) {
	t.Helper()
	if err := seeSources(); err != nil {
		t.Fatalf("look at the sources of the program under test: %v", err)
	}
	return launchNodes(t, CountNodes(t), build, wrapper, env, args)
}

func launchOne(t testing.TB, build string, wrapper, env, args []string) (*Process, io.Reader) {
	t.Helper()
	line := append(append(append([]string(nil), wrapper...), build), args...)
	// Not StdoutPipe: Wait closes its pipe, possibly before the reader has read the last line.
	pr, pw := io.Pipe()
	p := startProcess(t, "scribe "+strings.Join(args, " "), slices.Concat([]string{"SCRIBE_LOG_LEVEL=warn"}, ServerEnvironment(args), env), pw, line...)
	p.closes = closesFor(wrapper, args)
	return p, pr
}

// Other starts another program and does not wait for it. Its output is in its Log.
func Other(t testing.TB, name string, args ...string) *Process {
	t.Helper()
	return OtherWith(t, nil, name, args...)
}

// OtherWith is Other with additional environment variables.
func OtherWith(t testing.TB, env []string, name string, args ...string) *Process {
	t.Helper()
	line := append([]string{name}, args...)
	return startProcess(t, strings.Join(line, " "), env, nil, line...)
}

// startProcess starts a command line. Its standard output goes to stdout, which is closed when the process ends, or to its Log if stdout
// is nil.
func startProcess(t testing.TB, name string, env []string, stdout io.WriteCloser, line ...string) *Process {
	t.Helper()
	p := &Process{Name: name, Log: new(Log), Done: make(chan struct{}), t: t, cmd: exec.Command(line[0], line[1:]...)}
	p.cmd.Env = append(p.cmd.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.Log, p.Log
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	p.cmd.Dir = t.TempDir() // for files that default to the working folder
	p.cmd.SysProcAttr = child.Attributes()
	err := child.Start(p.cmd, func(err error) {
		p.Err = err
		if stdout != nil {
			_ = stdout.Close()
		}
		close(p.Done)
	})
	if err != nil {
		t.Fatalf("start %s: %v", p.Name, err)
	}
	t.Cleanup(func() {
		if stdout != nil {
			_ = stdout.Close() // nobody reads any more, so what it has printed must not keep it from ending
		}
		p.Kill()
		if t.Failed() {
			t.Logf("%s\n%s", p.Name, p.Log)
		}
	})
	return p
}

// Serve starts a server and waits until it is ready.
func Serve(t testing.TB, env []string, args ...string) *Process {
	t.Helper()
	p, stdout := Launch(t, env, args...)
	p.AwaitReady(stdout)
	return p
}

// AwaitReady reads the line that a server prints when it is ready, and ends the test if it does not come.
func (p *Process) AwaitReady(stdout io.Reader) {
	p.t.Helper()
	for _, n := range p.others {
		n.AwaitReady(n.stdout)
	}
	line := make(chan string, 1)
	go func() {
		r := bufio.NewReader(stdout)
		s, _ := r.ReadString('\n')
		line <- s
		_, _ = io.Copy(io.Discard, r)
	}()
	select {
	case s := <-line:
		url, ok := strings.CutPrefix(strings.TrimSpace(s), "ready ")
		if !ok {
			<-p.Done
			p.t.Fatalf("%s said %q instead of being ready, ended with %v:\n%s", p.Name, s, p.Err, p.Log)
		}
		p.URL = url
		p.closeOnce()
	case <-time.After(WaitLimit):
		p.t.Fatalf("%s was not ready in time:\n%s", p.Name, p.Log)
	}
}

// Kill ends the process at once, with kill -9, and returns when it has ended and its output was read. Unsynced writes survive in the page
// cache, unlike in a power loss.
func (p *Process) Kill() {
	for _, n := range p.others {
		_ = n.cmd.Process.Kill()
	}
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.Done
	for _, n := range p.others {
		<-n.Done
	}
}

// Terminate asks the process to end, and does not wait for it.
func (p *Process) Terminate() {
	for _, n := range p.others {
		n.Terminate()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
}

// Stop asks the process to end and waits until it has ended.
func (p *Process) Stop() {
	p.t.Helper()
	p.Terminate()
	p.AwaitStop()
}

// AwaitStop waits until a process that was asked to end has ended.
func (p *Process) AwaitStop() {
	p.t.Helper()
	AwaitStops(p.Nodes()...)
}

// AwaitStops waits until processes have ended that were asked to at the same time. If they are several, they are nodes: without a quorum, one may not hand over
// what it has, and says so with an error and its exit code. A panic has another one.
func AwaitStops(processes ...*Process) {
	limit := time.After(WaitLimit)
	for _, p := range processes {
		p.t.Helper()
		select {
		case <-p.Done:
		case <-limit:
			p.t.Fatalf("%s did not end on SIGTERM:\n%s", p.Name, p.Log)
		}
		exit := new(exec.ExitError)
		switch {
		case p.Err == nil:
		case len(processes) > 1 && errors.As(p.Err, &exit) && (exit.ExitCode() == exitFailed || exit.ExitCode() == ExitUnavailable):
			p.t.Logf("%s ended without a quorum: %v", p.Name, p.Err)
		default:
			p.t.Errorf("%s ended with %v on SIGTERM:\n%s", p.Name, p.Err, p.Log)
		}
	}
}

// Pause suspends the process, like a long pause of its machine, until Resume.
func (p *Process) Pause() {
	p.t.Helper()
	p.sendSignal(syscall.SIGSTOP)
	for _, n := range p.Nodes() {
		if err := awaitPaused(n.PID()); err != nil {
			n.t.Fatalf("pause %s: %v", n.Name, err)
		}
	}
}

// Resume ends a Pause.
func (p *Process) Resume() { p.sendSignal(syscall.SIGCONT) }

func (p *Process) sendSignal(s syscall.Signal) {
	p.t.Helper()
	for _, n := range p.Nodes() {
		if err := n.cmd.Process.Signal(s); err != nil {
			n.t.Fatalf("%v to %s: %v", s, n.Name, err)
		}
	}
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log collects the output of a process.
type Log = child.Log

// Await waits until something is so.
func Await(t testing.TB, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(WaitLimit)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it does not come to be that %s", what)
		}
	}
}
