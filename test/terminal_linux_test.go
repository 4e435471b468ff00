package test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"scribe/test/netfault"
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

// TestProduceOnTerminal: how far a produce is stands on a terminal, and gives way to what is said. The answer to a message that is then lost
// leaves its outcome unknown, which is never called "not stored".
func TestProduceOnTerminal(t *testing.T) {
	front := netfault.Listen(t, "127.0.0.1:0")
	up := serve(t, nil, "up", "--data", t.TempDir()+"/data", "--listen", "127.0.0.1:0", "--advertise", program.URL(front.Addr()))
	front.Target(program.Address(t, up.URL))
	ok(t, nil, "category", "create", "log", "--server", program.URL(front.Addr()))
	outside, inside := terminal(t)
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := program.Command(t.Context(), program.Binary(), "produce", "log", "--server", program.URL(front.Addr()), "--timeout", "2s")
	cmd.Stdin, cmd.Stderr = stdin, inside
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(inside.Close(), stdin.Close()); err != nil {
		t.Fatal(err)
	}
	screen := new(program.Log)
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(screen, outside) // ends with an error when the other side is closed
	}()
	if _, err := feed.Write(numbers(0, 1000)); err != nil {
		t.Fatal(err)
	}
	const shows = "1000 messages, 2.8KiB sent; 1000 messages, 2.8KiB acknowledged"
	eventually(t, waitLimit, "the terminal shows "+shows, func() bool { return strings.Contains(screen.String(), shows) })
	front.Set(netfault.LoseAnswers)
	if _, err := feed.Write([]byte("stored, and nobody knows\n")); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its state is looked at
	<-read
	front.Set(netfault.Pass)
	_ = feed.Close()
	if code := cmd.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d, want 6", code)
	}
	text := screen.String()
	if got, want := readSummary(t, strings.ReplaceAll(text, "\r\n", "\n")), (summary{stored: 1000, unknown: 1}); got != want {
		t.Errorf("the last line tells %+v, want %+v:\n%q", got, want, text)
	}
	const clearLine = "\r\x1b[K"
	for line := range strings.SplitSeq(text, "\r\n") {
		if parts := strings.Split(line, clearLine); strings.Contains(parts[len(parts)-1], " sent; ") {
			t.Errorf("progress is left: %q", line)
		}
	}
	sameBytes(t, "stored", tail(t, &cell{read: program.URL(front.Addr())}, "log"), append(numbers(0, 1000), "stored, and nobody knows\n"...))
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
