package prometheus

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// deployed returns the path of a file under deploy.
func deployed(name ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, name...)...)
}

func readText(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// requireTool skips where a person runs the suite without a program, and fails where everything must run.
func requireTool(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err == nil {
		return
	}
	if os.Getenv("SCRIBE_CI") != "" {
		t.Fatalf("%s is not installed: it is in Debian's package prometheus", name)
	}
	t.Skipf("%s is not installed: it is in Debian's package prometheus", name)
}

// promtool runs a command that must succeed.
func promtool(t testing.TB, args ...string) {
	t.Helper()
	requireTool(t, "promtool")
	if out, err := program.Command(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

// await polls for what other processes bring about. Until it has happened, explain says what is there instead.
func await(t testing.TB, explain func() string) {
	t.Helper()
	for limit := time.Now().Add(program.WaitLimit); ; <-time.After(200 * time.Millisecond) {
		missing := explain()
		if missing == "" {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("it did not happen in time: %s", missing)
		}
	}
}
