package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// TestHostileQueries: texts and rows that are meant to harm are refused, or answered, and neither harm a query that follows nor take memory
// that the configuration does not give them.
func TestHostileQueries(t *testing.T) {
	const memory = 1 << 30 // well below what the rows and texts would take if they were multiplied
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--write-memory", "64MiB", "--batch-memory", "64MiB",
		"--read-cache", "32MiB", "--read-memory", "192MiB", "--query-memory", "64MiB")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	file := filepath.Join(t.TempDir(), "events.yaml")
	if err := os.WriteFile(file, []byte("format: json\nfields:\n  - {name: n, type: int64, nullable: true}\n  - {name: s, type: string, nullable: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "category", "create", "events", "--schema", file, "--server", c.read)
	good := followQuery(t, c, "SELECT n FROM events WHERE n IS NOT NULL")
	n := 0
	goOn := func() { // the good query gets what is written now
		t.Helper()
		for range 3 {
			produce(t, c, "events", fmt.Appendf(nil, `{"n":%d,"s":"x"}`+"\n", n))
			if line := good.line(); line != fmt.Sprintf("{\"n\":%d}\n", n) {
				t.Fatalf("the query that follows has %q, want the row %d", line, n)
			}
			n++
		}
		good.stillRuns()
	}
	goOn()
	hostileTexts(t, c, goOn)

	// Rows: none of them is read as what it is not, and each is counted.
	hostile := [][]byte{
		[]byte(`{"n":` + strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000) + "}\n"),
		[]byte(`{"s":` + strings.Repeat(`{"a":`, 1_000_000) + "1" + strings.Repeat("}", 1_000_000) + "}\n"),
		[]byte(`{"x":"` + strings.Repeat("y", 16<<20-1000) + "\"}\n"),
	}
	for _, row := range hostile {
		produce(t, c, "events", row)
		goOn()
	}
	r := cli(t, io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("z"), 64<<20)), strings.NewReader("\n{\"n\":-1}\n")), "produce", "events", "--server", c.write, "--ack", "committed")
	if r.Code != 6 || !strings.Contains(string(r.Stderr), "-:1: the line is over the limit") || !strings.Contains(string(r.Stderr), "produced 1 messages") {
		t.Errorf("a line of 64 MiB: exit code %d\n%.2000s", r.Code, r.Stderr)
	}
	if line := good.line(); line != "{\"n\":-1}\n" { // the line behind it
		t.Errorf("the query that follows has %q", line)
	}
	goOn()
	if code, body := publish(t, c, bytes.Repeat([]byte("z"), 64<<20)); code/100 != 4 || !strings.Contains(body, "REASON_TOO_LARGE") || len(body) > 4000 {
		t.Errorf("a row of 64 MiB over HTTP: %d, %.2000s", code, body)
	}
	goOn()
	got := string(ok(t, nil, "query", "SELECT count(*) AS bad FROM events WHERE _error IS NOT NULL", "--server", c.read, "-o", "csv"))
	if got != "bad\r\n2\r\n" {
		t.Errorf("rows that can't be read: %q", got)
	}
	code, body := askHTTP(t, c, "SELECT count(n) AS n FROM events WHERE n >= 0")
	if want := fmt.Sprintf("{\"n\":%d}\n", n); code != http.StatusOK || body != want {
		t.Errorf("over HTTP: %d, %q, want %q", code, body, want)
	}
	if peak := up.PeakMemory(); peak > memory {
		t.Errorf("the server took %d MiB", peak>>20)
	} else {
		t.Logf("the server took %d MiB at most", peak>>20)
	}
}

// hostileTexts sends queries that are too long, too deep, or would take too long, on every way.
func hostileTexts(t *testing.T, c *cell, goOn func()) {
	t.Helper()
	for _, tt := range []struct{ name, sql, says string }{
		{"a megabyte", "SELECT n FROM events WHERE s = '" + strings.Repeat("x", 1<<20) + "'", "longer than"},
		{"ten thousand parentheses", "SELECT n FROM events WHERE " + strings.Repeat("(", 10_000) + "n = 1" + strings.Repeat(")", 10_000), "nest"},
		{"more than a text may have", "SELECT n FROM events WHERE s = '" + strings.Repeat("x", 90_000) + "'", "65536"},
		{"a regular expression that grows", "SELECT n FROM events WHERE s ~ '((((a{100}){100}){100}){100})'", "regular expression"},
	} {
		if len(tt.sql) < 100_000 { // an argument of a command is at most 128 KiB
			r := cli(t, nil, "query", tt.sql, "--server", c.read)
			if r.Code != 2 || !strings.Contains(string(r.Stderr), tt.says) || len(r.Stderr) > 4000 {
				t.Errorf("%s: exit code %d\n%.2000s", tt.name, r.Code, r.Stderr)
			}
			_, where, _ := strings.Cut(tt.sql, " WHERE ")
			r = cli(t, nil, "tail", "events", "--where", where, "--until-end", "--server", c.read)
			if r.Code != 2 || !strings.Contains(string(r.Stderr), tt.says) || len(r.Stderr) > 4000 {
				t.Errorf("%s as a filter: exit code %d\n%.2000s", tt.name, r.Code, r.Stderr)
			}
		}
		began := time.Now()
		if code, body := askHTTP(t, c, tt.sql); code/100 != 4 || !strings.Contains(body, tt.says) || len(body) > 4000 {
			t.Errorf("%s over HTTP: %d after %v: %.2000s", tt.name, code, time.Since(began), body)
		}
		goOn()
	}
	// Backtracking would take longer than the world has: matching takes time in proportion to the text.
	doom := "SELECT count(*) AS n FROM events WHERE '" + strings.Repeat("a", 5000) + "!' ~ '^(a+)+$' OR s ~ '^(([a-z])+.)+[A-Z]([a-z])+$'"
	if got := string(ok(t, nil, "query", doom, "--server", c.read, "-o", "csv")); got != "n\r\n0\r\n" {
		t.Errorf("a regular expression of doom: %q", got)
	}
	if code, body := askHTTP(t, c, doom); code != http.StatusOK || body != "{\"n\":0}\n" {
		t.Errorf("a regular expression of doom over HTTP: %d, %q", code, body)
	}
	goOn()
	// What would take terabytes is given up, and those who share a view with it are not.
	grown := "s"
	for range 4 {
		grown = "replace(" + grown + ", 'x', '" + strings.Repeat("x", 1000) + "')"
	}
	growing := "SELECT n FROM events WHERE n >= 0 AND length(" + grown + ") > 5"
	if r := cli(t, nil, "query", growing, "--server", c.read); r.Code != 1 || !strings.Contains(string(r.Stderr), "memory") || len(r.Stderr) > 4000 {
		t.Errorf("an expression that grows: exit code %d\n%.2000s", r.Code, r.Stderr)
	}
	goOn()
	// An answer that has begun, since it took long, is cut behind the error.
	code, body, whole := askHTTPFor(t, c, growing)
	if code != http.StatusUnprocessableEntity && (code != http.StatusOK || whole) || !strings.Contains(body, `"limit"`) || len(body) > 4000 {
		t.Errorf("an expression that grows over HTTP: %d, whole %v, %.2000s", code, whole, body)
	}
	goOn()
}

// publish writes a message by POST; what is refused by its length is not sent.
func publish(t *testing.T, c *cell, message []byte) (code int, body string) {
	t.Helper()
	text := slices.Concat([]byte(`{"category":"events","messages":[{"text":"`), message, []byte(`"}]}`))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.write+"/scribe.v1.WriteService/Publish", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Expect", "100-continue")
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // with the client's certificate
	transport.ExpectContinueTimeout, transport.DisableKeepAlives = program.WaitLimit, true
	client := http.Client{Timeout: program.WaitLimit, Transport: transport}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// askHTTP asks /v1/query by POST.
func askHTTP(t *testing.T, c *cell, sql string) (code int, body string) {
	t.Helper()
	code, body, whole := askHTTPFor(t, c, sql)
	if !whole {
		t.Fatalf("the answer to %.100s was cut: %.2000s", sql, body)
	}
	return code, body
}

// askHTTPFor is askHTTP for an answer that may be cut.
func askHTTPFor(t *testing.T, c *cell, sql string) (code int, body string, whole bool) {
	t.Helper()
	client := http.Client{Timeout: program.WaitLimit}
	res, err := client.Post(c.read+"/v1/query", "application/sql", strings.NewReader(sql))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer), err == nil
}
