package s3test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"

	"scribe/internal/testkit/child"
)

var errExited = errors.New("the server ended by itself")

// serverProcess is a child process.
type serverProcess struct {
	cmd *exec.Cmd
	// exited is closed when the process has ended and been waited for; err may be read after that.
	exited chan struct{}
	err    error
}

// startProcess runs a program in a process group of its own.
func startProcess(program string, args, env []string, output io.Writer) (*serverProcess, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = child.Attributes()
	cmd.SysProcAttr.Setpgid = true
	p := &serverProcess{cmd: cmd, exited: make(chan struct{})}
	err := child.Start(cmd, func(err error) {
		p.err = err
		close(p.exited)
	})
	return p, err
}

// killProcess kills the process with its children and returns when it has ended.
func (p *serverProcess) killProcess() {
	select {
	case <-p.exited:
		// Its id may belong to another process by now.
		return
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}
