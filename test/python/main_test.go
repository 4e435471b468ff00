package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// interpreter is the Python that has the clients.
func interpreter(t *testing.T) string {
	t.Helper()
	var args []string
	ci := os.Getenv("SCRIBE_CI") != ""
	if !ci {
		args = []string{"--installed"} // nobody downloads that much without having asked for it
	}
	cmd := exec.CommandContext(t.Context(), "./environment.sh", args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil && !ci {
		t.Skip("the Python clients are not installed: test/python/environment.sh does it, some 500 MB")
	}
	if err != nil {
		t.Fatalf("environment.sh: %v\n%s", err, log.String())
	}
	return strings.TrimSpace(string(out))
}

// script runs a program of testdata to its end. What it prints comes with its failure.
func script(t *testing.T, python, name string, args ...string) {
	t.Helper()
	cmd := program.Command(t.Context(), python, append([]string{filepath.Join("testdata", name)}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
