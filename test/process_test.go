package test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of these tests: far more than anything takes, so that only a hang reaches it.
const patience = 2 * time.Minute

// process is a running server of the program under test.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	url  string
	logs *lockedBuffer
	done chan struct{} // closed when it has ended
	err  error         // how it ended; read after done
}

// launch starts `scribe args...` with additional environment and does not wait for it.
func launch(t testing.TB, env []string, args ...string) (*process, io.Reader) {
	t.Helper()
	p := &process{t: t, name: strings.Join(args, " "), cmd: exec.Command(binary, args...), logs: new(lockedBuffer), done: make(chan struct{})}
	p.cmd.Env = append(append(p.cmd.Environ(), "SCRIBE_LOG_LEVEL=warn"), env...)
	p.cmd.Stderr = p.logs
	// A pipe of our own, since Wait closes StdoutPipe's while the reader may still want its last line.
	pr, pw := io.Pipe()
	p.cmd.Stdout = pw
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		_ = pw.Close()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("scribe %s\n%s", p.name, p.logs)
		}
	})
	return p, pr
}

// serve starts a server and waits until it is ready.
func serve(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	p, stdout := launch(t, env, args...)
	p.awaitReady(stdout)
	return p
}

// awaitReady reads the line that a server prints when it serves.
func (p *process) awaitReady(stdout io.Reader) {
	p.t.Helper()
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
			<-p.done
			p.t.Fatalf("scribe %s said %q instead of being ready, ended with %v:\n%s", p.name, s, p.err, p.logs)
		}
		p.url = url
	case <-time.After(patience):
		p.t.Fatalf("scribe %s was not ready in time:\n%s", p.name, p.logs)
	}
}

// kill ends the process at once, as a power cut ends it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.done
}

// stop asks the process to end and waits until it has.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Errorf("scribe %s ended with %v on SIGTERM:\n%s", p.name, p.err, p.logs)
		}
	case <-time.After(patience):
		p.t.Fatalf("scribe %s did not end on SIGTERM:\n%s", p.name, p.logs)
	}
}

// result is what a command did.
type result struct {
	stdout, stderr []byte
	code           int
}

// cli runs a command to its end.
func cli(t testing.TB, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("scribe %s did not end in time:\n%s", strings.Join(args, " "), stderr.Bytes())
	}
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("scribe %s: %v", strings.Join(args, " "), err)
	}
	return result{stdout: stdout.Bytes(), stderr: stderr.Bytes(), code: cmd.ProcessState.ExitCode()}
}

// ok runs a command that must succeed and returns what it printed.
func ok(t testing.TB, stdin io.Reader, args ...string) []byte {
	t.Helper()
	r := cli(t, stdin, args...)
	if r.code != 0 {
		t.Fatalf("scribe %s: exit code %d\n%s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// lockedBuffer collects the log of a process.
type lockedBuffer struct {
	mu struct {
		sync.Mutex
		b bytes.Buffer
	}
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.b.Write(p)
}

// String returns what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.b.String()
}
