package test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/testkit/sample"
)

// accessSchema is the schema of the access log in JSON.
const accessSchema = `
format: json
fields:
  - {name: ts, type: timestamp}
  - {name: client_ip, type: string}
  - {name: path, type: string}
  - {name: status, type: int32}
  - {name: bytes, type: int64, nullable: true}
  - {name: user_agent, type: string, nullable: true}
`

// accessLog is a cell with the access log in a category with a schema.
func accessLog(t *testing.T) *cell {
	t.Helper()
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	t.Cleanup(func() { up.Stop() })
	file := filepath.Join(t.TempDir(), "access.yaml")
	if err := os.WriteFile(file, []byte(accessSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "category", "create", "access", "--schema", file, "--server", up.URL)
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "access", sample.AccessJSON(), "--batch-bytes", "256KiB")
	return c
}

// TestQueries: what the guide shows, and the same answer however it comes about: through a view, through one that was made before, with
// pointers skipped, and evaluated at the reader.
func TestQueries(t *testing.T) {
	c := accessLog(t)
	for query, want := range map[string]string{
		"SELECT client_ip, status, path FROM access WHERE status >= 500": "client_ip,status,path\r\n66.249.73.135,500,/misc/Title.php.txt\r\n" +
			"66.249.73.135,500,/misc/Title.php.txt\r\n64.131.102.243,500,/projects/xdotool/\r\n",
		"SELECT path, count(*) AS hits, sum(bytes) AS bytes FROM access GROUP BY path ORDER BY hits DESC LIMIT 3": "path,hits,bytes\r\n/favicon.ico,807,2866744\r\n" +
			"/style2.css,546,2594564\r\n/reset.css,538,535920\r\n",
		"SELECT date_trunc('day', ts)::date AS day, count(*) AS n FROM access WHERE user_agent LIKE '%Googlebot%' GROUP BY 1 ORDER BY 1 LIMIT 1": "day,n\r\n",
		"SELECT path, bytes, ts FROM access ORDER BY bytes DESC NULLS LAST, ts LIMIT 2 OFFSET 1": "path,bytes,ts\r\n/files/logstash/logstash-1.1.9-monolithic.jar,69192717,2015-05-20T04:05:13Z\r\n" +
			"/files/logstash/logstash-1.1.9-flatjar.jar,65259653,2015-05-18T21:05:07Z\r\n",
		"SELECT DISTINCT status FROM access ORDER BY 1 DESC LIMIT 3 OFFSET 1": "status\r\n416\r\n404\r\n403\r\n",
	} {
		for _, flags := range [][]string{nil, nil, {"--local"}, {"--compress", "s2"}, {"--compress", "zstd"}} {
			got := string(ok(t, nil, append([]string{"query", query, "--server", c.read, "-o", "csv", "--window", "0"}, flags...)...))
			if !strings.HasPrefix(got, want) || want != "day,n\r\n" && got != want {
				t.Errorf("%s %v: got\n%s\nwant\n%s", query, flags, got, want)
			}
		}
	}
	all := ok(t, nil, "query", "SELECT * FROM access", "--server", c.read, "-o", "jsonl")
	if n := bytes.Count(all, []byte("\n")); n != bytes.Count(sample.AccessJSON(), []byte("\n")) {
		t.Errorf("%d rows of everything", n)
	}
	if got := string(ok(t, nil, "query", "SELECT count(*) AS n FROM access WHERE client_ip = ? AND status = ?", "--param", "66.249.73.135", "--param", "404", "--server", c.read, "-o", "csv")); got != "n\r\n8\r\n" {
		t.Errorf("with values: %s", got)
	}
	tables := string(ok(t, nil, "query", "SHOW TABLES", "--server", c.read, "-o", "csv"))
	if got := strings.ReplaceAll(tables, "_audit\r\n", ""); got != "name\r\naccess\r\n" { // a secured cell has a trail
		t.Errorf("tables: %s", got)
	}
	if got := string(ok(t, nil, "query", "DESCRIBE access", "--server", c.read, "-o", "csv")); !strings.Contains(got, "\r\nstatus,int32,YES\r\nbytes,int64,YES\r\n") {
		t.Errorf("columns: %s", got)
	}
	explained := string(ok(t, nil, "query", "SELECT path FROM access WHERE status = 999", "--server", c.read, "--explain"))
	if !strings.Contains(explained, "status = 999") || !strings.Contains(explained, "0 in the answer") {
		t.Errorf("explained as\n%s", explained)
	}
}

// TestFailedGroupsKeepTheirPlace: groups that can't be printed are not passed over by a checkpoint; those that are printed are.
func TestFailedGroupsKeepTheirPlace(t *testing.T) {
	c := accessLog(t)
	file := filepath.Join(t.TempDir(), "checkpoint")
	r := cli(t, nil, "query", "SELECT ts, client_ip, path, bytes, user_agent, count(*) AS n FROM access GROUP BY 1, 2, 3, 4, 5", "--server", c.read,
		"--checkpoint", file, "--max-memory", "1MiB")
	if r.Code != 1 || !strings.Contains(string(r.Stderr), "groups") {
		t.Fatalf("too many groups: exit code %d\n%s", r.Code, r.Stderr)
	}
	rows := bytes.Count(sample.AccessJSON(), []byte("\n"))
	for _, want := range []int{rows, 0} {
		got := string(ok(t, nil, "query", "SELECT count(*) AS n FROM access", "--server", c.read, "--checkpoint", file, "-o", "csv"))
		if got != fmt.Sprintf("n\r\n%d\r\n", want) {
			t.Errorf("counted %q, want %d", got, want)
		}
	}
}

// TestTailWhere: messages that match, as they were written, and a checkpoint behind those that do not.
func TestTailWhere(t *testing.T) {
	c := accessLog(t)
	var want []byte
	for line := range bytes.Lines(sample.AccessJSON()) {
		if bytes.Contains(line, []byte(`"status":404`)) {
			want = append(want, line...)
		}
	}
	file := filepath.Join(t.TempDir(), "checkpoint")
	var got []byte
	for _, n := range []string{"1", "100"} {
		got = append(got, tail(t, c, "access", "--where", "status = 404", "--checkpoint", file, "-n", n)...)
	}
	got = append(got, tail(t, c, "access", "--where", "status = 404", "--checkpoint", file)...)
	sameBytes(t, "the messages with status 404", got, want)
}

// TestWrongQueries: a mistake is shown with its place and ends with exit code 2; nothing hostile harms the cell.
func TestWrongQueries(t *testing.T) {
	c := accessLog(t)
	for _, tt := range []struct {
		query string
		code  int
		want  string
	}{
		{"SELECT path FROM access WHERE stats = 404", 2, "^"},
		{"SELEC path FROM access", 2, "^"},
		{"SELECT " + strings.Repeat("(", 10_000) + "1" + strings.Repeat(")", 10_000) + " FROM access", 2, "nest"},
		{"SELECT path FROM access WHERE path = '" + strings.Repeat("x", 100_000) + "'", 2, ""},
		{"SELECT path ~ '((((a{100}){100}){100}){100})' AS m FROM access", 2, ""},
		{"SELECT path FROM nosuch", 3, "nosuch"},
		{"SELECT count(*) FROM access", 0, ""},
	} {
		r := cli(t, nil, "query", tt.query, "--server", c.read)
		if r.Code != tt.code || !strings.Contains(string(r.Stderr), tt.want) || strings.Contains(string(r.Stderr), "panic") {
			t.Errorf("%.60s: exit code %d, want %d:\n%.2000s", tt.query, r.Code, tt.code, r.Stderr)
		}
	}
	if r := cli(t, nil, "query", "SELECT count(*) FROM access", "--follow", "--server", c.read); r.Code != 2 || !strings.Contains(string(r.Stderr), "Do not follow") {
		t.Errorf("groups without an end: exit code %d:\n%s", r.Code, r.Stderr)
	}
}

// TestSchemaChangesUnderQueries: a query keeps the schema that it began with, and every message is readable under the next.
func TestSchemaChangesUnderQueries(t *testing.T) {
	c := accessLog(t)
	before := strings.Count(string(ok(t, nil, "query", "SELECT path FROM access", "--server", c.read, "-o", "jsonl")), "\n")
	file := filepath.Join(t.TempDir(), "next.yaml")
	if err := os.WriteFile(file, []byte(accessSchema+"  - {name: referrer, type: string, nullable: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "schema", "set", "access", file, "--server", c.read)
	produce(t, c, "access", []byte(`{"path":"/new","status":200,"referrer":"here"}`+"\n"))
	old := bytes.Count(sample.AccessJSON(), []byte(`"referrer":"`))
	got := string(ok(t, nil, "query", "SELECT count(*) AS n, count(referrer) AS r FROM access", "--server", c.read, "-o", "csv"))
	if want := fmt.Sprintf("n,r\r\n%d,%d\r\n", before+1, old+1); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
