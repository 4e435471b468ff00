package program

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Undo runs a command line when a test ends, or when the test binary dies before, whatever ended that one: a timeout, a panic, a signal. It is
// for what outlives processes, such as mounts. The command must succeed when the test ends.
func Undo(t testing.TB, line ...string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// It waits until nobody can write to its input any more: this process alone can.
	cmd := exec.Command("sh", append([]string{"-c", `cat >/dev/null; exec "$@"`, "sh"}, line...)...)
	cmd.SysProcAttr = guardAttributes()
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

// Unmount unmounts a folder as Undo does, also from processes that still use it. It need not be mounted then.
func Unmount(t testing.TB, dir string) {
	t.Helper()
	Undo(t, "sh", "-c", `umount --lazy "$1" 2>/dev/null; ! grep -qF " $1 " /proc/self/mounts`, "sh", dir)
}
