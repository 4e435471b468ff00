package s3test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

var errExited = errors.New("the server ended by itself")

// serverProcess is a child process whose output goes to a tailBuffer.
type serverProcess struct {
	cmd *exec.Cmd
	// exited is closed when the process has ended and been waited for; err may be read after that.
	exited chan struct{}
	err    error
}

// startProcess runs a program in a process group of its own. On Linux the program also ends with the test binary, however that ends.
func startProcess(program string, args, env []string, output *tailBuffer) (*serverProcess, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout = output
	cmd.Stderr = output
	cmd.SysProcAttr = childAttributes()

	p := &serverProcess{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The parent-death signal is sent when the thread that started the child ends, so that thread must last as long as
		// the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
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

// tailBuffer keeps the last bytes of a process's output.
type tailBuffer struct {
	mu struct {
		sync.Mutex
		data []byte
	}
}

const tailBytes = 64 << 10

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.data = append(b.mu.data, p...)
	if extra := len(b.mu.data) - tailBytes; extra > 0 {
		b.mu.data = append(b.mu.data[:0], b.mu.data[extra:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.mu.data)
}
