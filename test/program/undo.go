package program

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"scribe/internal/testkit/child"
)

// Undo runs a command line when a test ends, or when the test binary ends before, whatever the cause: a timeout, a panic, a signal. It is
// for things that outlive processes, such as mounts. If the command fails, the test fails.
func Undo(t testing.TB, line ...string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// The shell waits for the end of its input, which comes when this process, the only writer, closes it or ends.
	cmd := exec.Command("sh", append([]string{"-c", `cat >/dev/null; exec "$@"`, "sh"}, line...)...)
	cmd.SysProcAttr = child.GuardAttributes()
	var log Log
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, &log, &log
	err = cmd.Start()
	_ = r.Close()
	if err != nil {
		_ = w.Close()
		t.Fatalf("start what undoes by %s: %v", strings.Join(line, " "), err)
	}
	t.Cleanup(func() {
		_ = w.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", strings.Join(line, " "), err, log.String())
		}
	})
}

// Unmount unmounts a folder by Undo, also if processes still use it. It need not be mounted any more.
func Unmount(t testing.TB, dir string) {
	t.Helper()
	Undo(t, "sh", "-c", `umount --lazy "$1" 2>/dev/null; ! grep -qF " $1 " /proc/self/mounts`, "sh", dir)
}
