package python

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/testkit/sample"
	"scribe/test/program"
)

const schemaFile = `
fields:
  - {name: ts, type: timestamp}
  - {name: client_ip, type: string}
  - {name: method, type: dictionary}
  - {name: path, type: string}
  - {name: status, type: int32}
  - {name: bytes, type: int64, nullable: true}
`

// cell is a process with the access log, of which a bounded part may be asked for.
type cell struct{ http, flight string }

func start(t *testing.T, args ...string) *cell {
	t.Helper()
	flight := program.Reserve(t)
	dir := t.TempDir()
	up := program.Serve(t, nil, append([]string{"up", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--flight", flight}, args...)...)
	t.Cleanup(up.Stop)
	file := filepath.Join(dir, "access.yaml")
	if err := os.WriteFile(file, []byte(schemaFile), 0o600); err != nil {
		t.Fatal(err)
	}
	program.OK(t, nil, "category", "create", "access", "--server", up.URL)
	program.OK(t, nil, "schema", "set", "access", file, "--server", up.URL)
	program.OK(t, bytes.NewReader(sample.AccessJSON()), "produce", "access", "--server", up.URL)
	return &cell{http: up.URL, flight: "grpc://" + flight}
}

// facts are what every client must find, as encoding/json finds it.
type facts struct {
	Rows    int    `json:"rows"`
	Missing int    `json:"missing"` // with status 404
	Bytes   int64  `json:"bytes"`   // of these
	Paths   int    `json:"paths"`   // different ones of these
	First   string `json:"first"`   // the least of the paths
}

func known(t *testing.T) facts {
	t.Helper()
	var f facts
	paths := map[string]bool{}
	for line := range bytes.Lines(sample.AccessJSON()) {
		var row struct {
			Status int
			Bytes  *int64
			Path   string
		}
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		f.Rows++
		if row.Status != 404 {
			continue
		}
		f.Missing++
		if row.Bytes != nil {
			f.Bytes += *row.Bytes
		}
		paths[row.Path] = true
		if f.First == "" || row.Path < f.First {
			f.First = row.Path
		}
	}
	f.Paths = len(paths)
	return f
}

func TestClients(t *testing.T) {
	python := interpreter(t)
	c := start(t)
	text, err := json.Marshal(known(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{
		"arrow", "polars", "polars_text", "duckdb", "jsonl", "csv", "errors", "follow", "gone", "flight", "flight_cancelled", "adbc", "adbc_catalog",
	} {
		t.Run(way, func(t *testing.T) { script(t, python, "clients.py", way, c.http, c.flight, string(text)) })
	}
}

// TestCut: no client takes an answer that ended at a bound for the whole one.
func TestCut(t *testing.T) {
	python := interpreter(t)
	config := filepath.Join(t.TempDir(), "scribe.yaml")
	if err := os.WriteFile(config, []byte("sqlserver: {max_rows: 5000}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := start(t, "--config", config)
	script(t, python, "clients.py", "cut", c.http, c.flight, "{}")
}

func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("SCRIBE_CI") != "" {
			t.Fatal("curl is not installed")
		}
		t.Skip("curl is not installed")
	}
	c := start(t)
	curl := func(args ...string) (string, int) {
		t.Helper()
		cmd := program.Command(t.Context(), "curl", append([]string{"-sS", "--max-time", "60", c.http + "/v1/query"}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	const query = "sql=SELECT status, path FROM access WHERE status = 404 AND method = 'POST' LIMIT 1"
	row, code := curl("-G", "--data-urlencode", query)
	if code != 0 || !strings.HasPrefix(row, `{"status":404,"path":"/`) || strings.Count(row, "\n") != 1 {
		t.Errorf("GET: %d, %s", code, row)
	}
	for _, args := range [][]string{
		{"--data-urlencode", query},
		{"--json", `{"sql": "` + strings.TrimPrefix(query, "sql=") + `"}`, "-H", "Accept: */*"},
		{"-H", "Content-Type: application/sql", "--data-binary", strings.TrimPrefix(query, "sql=")},
		{"--compressed", "--data-urlencode", query},
	} {
		if got, code := curl(args...); code != 0 || got != row {
			t.Errorf("%q: %d, %s", args, code, got)
		}
	}
	if got, code := curl("--fail-with-body", "--data-urlencode", "sql=SELECT pth FROM access"); code != 22 || !strings.Contains(got, `"column": 8`) || !strings.Contains(got, "path") {
		t.Errorf("an error: %d, %s", code, got)
	}
}
