package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// sourceFile sets what a file of exports sets, as a shell reads it.
func sourceFile(t *testing.T, path string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$1" && env`, "sh", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if name == "SCRIBE_SERVER" || name == "SCRIBE_TOKEN" || name == "SCRIBE_CA" {
			t.Setenv(name, value)
		}
	}
}

// TestSecure: `scribe up --secure` makes what it needs at its first start. What the README's quick start does works with what it writes, and
// again after a restart; nothing works without.
func TestSecure(t *testing.T) {
	dir := t.TempDir()
	data, admin, file := filepath.Join(dir, "data"), filepath.Join(dir, "data", "secure", "admin.env"), filepath.Join(dir, "access.log")
	lines := []byte("one\ntwo\nthree\n")
	if err := os.WriteFile(file, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	var token string
	for again := range 2 {
		up := serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
		// The file is there when the process says that it is ready.
		sourceFile(t, admin)
		if info, err := os.Stat(admin); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if got := os.Getenv("SCRIBE_SERVER"); got != up.URL || !strings.HasPrefix(got, "https://") {
			t.Errorf("the server is %q, ready at %q", got, up.URL)
		}
		if again == 0 {
			token = os.Getenv("SCRIBE_TOKEN")
			program.OK(t, nil, "produce", "apache", file)
		} else if os.Getenv("SCRIBE_TOKEN") != token {
			t.Error("a restart makes another token")
		}
		sameBytes(t, "the file", program.OK(t, nil, "tail", "apache", "--from", "earliest", "--until-end", "-o", "raw"), lines)
		program.OK(t, nil, "tail", "apache", "--from", "earliest", "--until-end", "-o", "jsonl", "-n", "1")
		program.OK(t, nil, "tail", "apache", "--from", "earliest", "--until-end", "--checkpoint", filepath.Join(dir, "apache.cp"))
		program.OK(t, nil, "tail", "apache", "--from", "earliest", "--until-end", "--group", "audit")
		wantCode(t, program.Run(t, nil, "group", "describe", "audit"), 0, "apache")
		wantCode(t, program.Run(t, nil, "status"), 0)
		wantCode(t, program.Run(t, nil, "token", "list"), 0, "admin", "all:*")
		wantCode(t, program.Run(t, nil, "query", "SELECT count(*) AS n FROM apache", "-o", "jsonl"), 0, `"n":3`)
		t.Setenv("SCRIBE_TOKEN", "")
		for _, args := range [][]string{{"status"}, {"category", "list"}, {"tail", "apache", "--until-end"}, {"token", "list"}} {
			wantCode(t, program.Run(t, nil, args...), 4)
		}
		t.Setenv("SCRIBE_TOKEN", token)
		t.Setenv("SCRIBE_CA", "")
		if r := program.Run(t, nil, "status"); r.Code == 0 {
			t.Errorf("a server that nobody vouches for is taken: %s", r.Stdout)
		}
		up.Stop()
	}
	// The token is no longer good: the next start makes another one.
	up := serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	sourceFile(t, admin)
	second := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--can", "all:*")))
	program.OK(t, nil, "token", "revoke", strings.Split(token, "_")[1])
	up.Stop()
	up = serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	sourceFile(t, admin)
	if got := os.Getenv("SCRIBE_TOKEN"); got == token || got == second {
		t.Errorf("the token is %.20q", got)
	}
	program.OK(t, nil, "category", "list")
	// Nothing of it is in the log.
	if log := []byte(up.Log.String()); bytes.Contains(log, []byte(os.Getenv("SCRIBE_TOKEN"))) {
		t.Error("the token is in the log")
	}
}
