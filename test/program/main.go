package program

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/testkit/testsize"
)

// WaitLimit bounds every wait of these tests. It is far above the duration of any step, so that only a hang reaches it.
const WaitLimit = 2 * time.Minute

// binary is the program under test; set by Main before any test runs.
var binary string

// Main builds the program, with the race detector if the tests have it, runs the tests of a package and returns the exit code. With -short
// it runs no test: suites over the real program take too long for the developer's loop. Under the race detector it runs those that raced
// matches, as -run would, if they are not chosen otherwise: they should be few, in which the most goes on at once.
func Main(m *testing.M, raced ...string) int {
	flag.Parse()
	switch chosen := flag.Lookup("test.run").Value; {
	case !testing.Short():
	case !testsize.RaceEnabled || len(raced) == 0:
		fmt.Fprintln(os.Stderr, "left out with -short: this suite runs the real program")
		_ = chosen.Set("^$") // go test says "no tests to run" beside the package
		return m.Run()
	case chosen.String() == "":
		_ = chosen.Set(strings.Join(raced, "|"))
	}
	// Counts of deliveries would come between what tests look at, and be one category more. Tests of the counts turn them on.
	if err := os.Setenv("SCRIBE_DELIVERY", "false"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "scribe-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "scribe")
	args := []string{"build", "-ldflags=-s -w", "-o", binary} // without what debuggers need, linking takes half as long
	if testsize.RaceEnabled {
		args = append(args, "-race")
	}
	build := Command(context.Background(), "go", append(args, "scribe/cmd/scribe")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build the program under test:", err)
		return 1
	}
	return m.Run()
}

// seeSources calls stat on each source file of the program, once. go test caches the result of a package as long as its sources and the
// files that its tests opened or examined stay the same: without this, tests that run the program and import none of it would not run
// again when it changes. Files examined before m.Run do not count, so the functions that run the program call it.
var seeSources = sync.OnceValue(func() error {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return err
	}
	return filepath.WalkDir(strings.TrimSpace(string(root)), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"), d.Name() == "go.mod":
			_, err = os.Stat(path)
		}
		return err
	})
})

// Binary returns the path of the program under test.
func Binary() string { return binary }

// olderVariable names an older build of the program, from which tests upgrade.
const olderVariable = "SCRIBE_TEST_OLDER"

// Older returns the path of an older build of the program: the one that the environment names, or else the program under test.
func Older(t testing.TB) string {
	t.Helper()
	path := os.Getenv(olderVariable)
	if path == "" {
		t.Logf("%s names no older build: this one stands for it", olderVariable)
		return binary
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path) // go test runs the test again when it changes
	}
	if err != nil {
		t.Fatalf("%s: %v: want the path of a build of the program", olderVariable, err)
	}
	return path
}
