package program

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"scribe/internal/testkit/overlay"
)

// clockVariable is known to builds of Clocked only: how far their wall clock is ahead of the machine's.
const clockVariable = "SCRIBE_TEST_CLOCK"

// clockChanges have the program read the variable. Adding keeps the monotonic reading, so durations are as long as with any clock.
var clockChanges = []overlay.Change{
	{File: "cmd/scribe/app/host.go", Before: "import (\n", After: "import (\n\t\"os\"\n"},
	{
		File: "cmd/scribe/app/host.go", Before: "\t\th.Now = time.Now\n",
		After: "\t\tahead, err := time.ParseDuration(os.Getenv(\"" + clockVariable + "\"))\n\t\tif err != nil {\n\t\t\tpanic(err)\n\t\t}\n" +
			"\t\th.Now = func() time.Time { return time.Now().Add(ahead) }\n",
	},
}

// Clocked returns the path of a build of the program whose wall clock is not the machine's: the variable that SetClock returns says by how much. All that processes
// store, send or compare with either has the times of that clock. Those of their logs are the machine's, and etcd, inside them, does not ask for the time of day.
func Clocked(t testing.TB) string {
	t.Helper()
	path, err := buildClocked()
	if err != nil {
		t.Fatalf("build the program with another clock: %v", err)
	}
	return path
}

var buildClocked = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(filepath.Dir(binary), "clocked") // Main removes it
	root, err := findRoot()
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", err
	}
	list, err := overlay.Write(dir, root, clockChanges...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "scribe")
	return path, build(context.Background(), path, "-overlay", list)
})

// SetClock returns the variable of the environment for a clock that is so much ahead of the machine's, or behind it if that is negative. Only Clocked knows it.
func SetClock(ahead time.Duration) string { return clockVariable + "=" + ahead.String() }
