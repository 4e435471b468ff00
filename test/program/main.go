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

// Suite is what differs between suites over the real program.
type Suite struct {
	// Raced are the tests that run under the race detector, as -run has them, if none are chosen otherwise: few, in which the most goes on at once.
	Raced []string
	// LeftOut are the tests that are not run where cells are secured (SCRIBE_TEST_SECURE), with the reason. Nil: the suite's cells never are.
	LeftOut map[string]string
}

// Main is Suite.Main for a suite whose cells are never secured.
func Main(m *testing.M, raced ...string) int { return Suite{Raced: raced}.Main(m) }

// Main builds the program, with the race detector if the tests have it, runs the tests of a package and returns the exit code. With -short
// it runs no test, or Raced alone: suites over the real program take too long for the developer's loop.
func (s Suite) Main(m *testing.M) int {
	flag.Parse()
	switch chosen := flag.Lookup("test.run").Value; {
	case !testing.Short():
	case !testsize.RaceEnabled || len(s.Raced) == 0:
		fmt.Fprintln(os.Stderr, "left out with -short: this suite runs the real program")
		_ = chosen.Set("^$") // go test says "no tests to run" beside the package
		return m.Run()
	case chosen.String() == "":
		_ = chosen.Set(strings.Join(s.Raced, "|"))
	}
	dir, err := os.MkdirTemp("", "scribe-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "scribe")
	if err := build(context.Background(), binary); err != nil {
		fmt.Fprintln(os.Stderr, "build the program under test:", err)
		return 1
	}
	switch secure := os.Getenv(secureVariable) != ""; {
	case secure && s.LeftOut == nil:
		fmt.Fprintln(os.Stderr, "the cells of this suite are never secured, also not with", secureVariable)
	case secure:
		if err := secureSuite(filepath.Join(dir, "certs"), s.LeftOut); err != nil {
			fmt.Fprintln(os.Stderr, "secure the cells:", err)
			return 1
		}
	}
	return m.Run()
}

// build builds the program, with the race detector if the tests have it.
func build(ctx context.Context, path string, more ...string) error {
	args := append([]string{"build", "-ldflags=-s -w", "-o", path}, more...) // without what debuggers need, linking takes half as long
	if testsize.RaceEnabled {
		args = append(args, "-race")
	}
	cmd := Command(ctx, "go", append(args, "scribe/cmd/scribe")...)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// seeSources calls stat on each source file of the program, once. go test caches the result of a package as long as its sources and the
// files that its tests opened or examined stay the same: without this, tests that run the program and import none of it would not run
// again when it changes. Files examined before m.Run do not count, so the functions that run the program call it.
var seeSources = sync.OnceValue(func() error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
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

// findRoot returns the folder of the module.
func findRoot() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	return strings.TrimSpace(string(root)), err
}

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
