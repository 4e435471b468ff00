package program

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Patience bounds every wait of these tests: far more than anything takes, so that only a hang reaches it.
const Patience = 2 * time.Minute

// binary is the program under test; set by Main before any test runs.
var binary string

// Main builds the program, with the race detector if the tests have it, runs the tests of a package and returns its exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "scribe-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "scribe")
	args := []string{"build", "-o", binary}
	if RaceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "scribe/cmd/scribe")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program under test:", err)
		return 1
	}
	return m.Run()
}

// Binary is the path of the program under test.
func Binary() string { return binary }
