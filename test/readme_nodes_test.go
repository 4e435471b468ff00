package test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"scribe/test/program"
)

// TestReadmeNodes runs what the README has to paste for three nodes on one machine, with other ports: a node is killed, its folder removed, an empty one takes its
// place, and nothing is lost.
func TestReadmeNodes(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	script := shellBlock(t, string(text), "CLUSTER=n1=127.0.0.1:7420")
	for _, address := range []string{"127.0.0.1:7420", "127.0.0.1:7430", "127.0.0.1:7440"} {
		if !strings.Contains(script, address) {
			t.Fatalf("no node at %s in\n%s", address, script)
		}
		script = strings.ReplaceAll(script, address, program.NodeAddress(t))
	}
	dir := t.TempDir()
	if err := os.Symlink(program.Binary(), filepath.Join(dir, "scribe")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*waitLimit)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", "-c", script+"\nwait\n")
	var out, log bytes.Buffer
	bash.Dir, bash.Stdout, bash.Stderr = dir, &out, &log
	bash.Env = append(os.Environ(), "SCRIBE_LOG_LEVEL=warn")
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its nodes it ends together
	endAll := func() error { return syscall.Kill(-bash.Process.Pid, syscall.SIGKILL) }
	bash.Cancel, bash.WaitDelay = endAll, waitLimit
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	program.Undo(t, "sh", "-c", `kill -KILL -- "-$1" 2>/dev/null || true`, "sh", strconv.Itoa(bash.Process.Pid))
	_ = bash.Wait() // with the time limit at the latest; its exit code is that of a node that was told to end
	counts, listed := 0, false
	for line := range strings.Lines(out.String()) {
		if strings.TrimSpace(line) == "10000" {
			counts++
		}
		listed = listed || strings.HasPrefix(line, "NODE ")
	}
	if counts != 2 || !listed {
		t.Errorf("all messages were read %d times, want 2, the nodes were listed: %v\n%s\n%s", counts, listed, out.Bytes(), log.Bytes())
	}
}

// shellBlock returns the block of shell commands in a Markdown file that begins with some text.
func shellBlock(t *testing.T, markdown, begin string) string {
	t.Helper()
	const fence = "```sh\n"
	_, block, found := strings.Cut(markdown, fence+begin)
	block, _, ended := strings.Cut(block, "\n```")
	if !found || !ended {
		t.Fatalf("no block of shell commands begins with %q", begin)
	}
	return begin + block
}
