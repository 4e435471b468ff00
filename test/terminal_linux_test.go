package test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"scribe/test/program"
)

// terminal opens a pseudo terminal: what a program writes to the second file is read from the first.
func terminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outside.Close() })
	if err := unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return outside, inside
}

// TestProgress: how far a tail is stands on a terminal while messages go elsewhere, is not there when all goes to one, and gives way to
// what is said.
func TestProgress(t *testing.T) {
	c := single(t)
	produce(t, c, "log", numbers(0, 1000))
	for _, shared := range []bool{false, true} {
		outside, inside := terminal(t)
		file, err := os.Create(t.TempDir() + "/out")
		if err != nil {
			t.Fatal(err)
		}
		cmd := program.Command(t.Context(), program.Binary(), "tail", "log", "--server", c.read, "--from", "earliest")
		cmd.Stdout, cmd.Stderr = file, inside
		if shared {
			cmd.Stdout = inside
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := inside.Close(); err != nil {
			t.Fatal(err)
		}
		screen := new(program.Log)
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(screen, outside) // ends with an error when the other side is closed
		}()
		shows := "1000 messages, 3.8KiB"
		if shared {
			shows = "\n999\r\n"
		}
		eventually(t, waitLimit, "the terminal shows "+shows, func() bool { return strings.Contains(screen.String(), shows) })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
		<-read
		const clearLine = "\r\x1b[K"
		switch text := screen.String(); {
		case shared && strings.Contains(text, "\x1b"):
			t.Errorf("progress stands between messages: %q", text)
		case !shared && !strings.HasSuffix(text, clearLine):
			t.Errorf("progress is left: %q", text)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
