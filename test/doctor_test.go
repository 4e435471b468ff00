package test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestDoctor: before a start everything is in order, and while the process runs its folder and its address are taken.
func TestDoctor(t *testing.T) {
	program.OneProcess(t, "it is about the folders and the address of one")
	dir := filepath.Join(t.TempDir(), "data")
	before := cli(t, nil, "doctor", "--data", dir, "--listen", "127.0.0.1:0")
	if before.Code != 0 || !strings.Contains(string(before.Stdout), "blob store") {
		t.Errorf("before the start: exit code %d\n%s%s", before.Code, before.Stdout, before.Stderr)
	}
	up := serve(t, nil, "up", "--data", dir, "--listen", "127.0.0.1:0")
	defer up.Stop()
	r := cli(t, nil, "doctor", "--data", dir, "--listen", program.Address(t, up.URL), "-o", "json")
	var report struct {
		State  string
		Checks []struct{ Check, State, Found, Advice string }
	}
	if err := json.Unmarshal(r.Stdout, &report); err != nil || r.Code != 1 || report.State != "failed" {
		t.Fatalf("exit code %d, %v:\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	var failed []string
	for _, c := range report.Checks {
		if c.State == "failed" {
			failed = append(failed, c.Found)
		}
	}
	held := fmt.Sprintf("in use by process %d", up.PID())
	if len(failed) != 3 || !strings.Contains(failed[0], dir+" is "+held) || !strings.Contains(failed[1], "spool is "+held) || !strings.Contains(failed[2], "another process listens there") {
		t.Errorf("failed: %q, want the folders that process %d has, and the address", failed, up.PID())
	}
}
