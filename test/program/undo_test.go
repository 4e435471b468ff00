package program_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"scribe/test/program"
)

// undone is the variable that makes the test binary what is killed: it names a file to make when it is.
const undone = "SCRIBE_TEST_UNDONE"

// TestNothingIsLeft: when a test binary is killed, what it started is killed, too, and what it wanted undone is.
func TestNothingIsLeft(t *testing.T) {
	if file := os.Getenv(undone); file != "" {
		program.Undo(t, "touch", file)
		for _, cmd := range []string{"cat", "sleep 1000"} {
			child := program.Command(t.Context(), "sh", "-c", "exec "+cmd)
			child.Stdin, child.Stdout = os.Stdin, os.Stdout
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintln(os.Stdout, "started")
		<-t.Context().Done() // it is killed before
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "undone")
	victim := program.Command(t.Context(), self, "-test.run=^TestNothingIsLeft$")
	victim.Env = append(os.Environ(), undone+"="+file)
	stdin, in, err := os.Pipe() // never written to
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = stdin.Close(), in.Close() }()
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	victim.Stdin, victim.Stdout = stdin, stdout
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	_ = stdout.Close()
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	// Its children have its output; the end of that is theirs.
	if err := out.SetReadDeadline(time.Now().Add(program.WaitLimit)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil {
		t.Errorf("something still runs: %q, %v", rest, err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(program.WaitLimit); ; <-tick.C {
		if _, err := os.Stat(file); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was undone")
		}
	}
}

// TestUndo: what is to be undone is undone when the test has ended, and after what it did later.
func TestUndo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "undone")
	t.Run("test", func(t *testing.T) {
		program.Undo(t, "touch", file)
		t.Cleanup(func() {
			if _, err := os.Stat(file); err == nil {
				t.Error("it was undone too early")
			}
		})
	})
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
