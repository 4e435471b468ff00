package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// followQuery starts `scribe query --follow` from the beginning; its rows are read as the lines of a tail.
func followQuery(t *testing.T, c *cell, query string, flags ...string) *following {
	t.Helper()
	return followed(t, append([]string{"query", query, "--follow", "--from", "earliest", "--server", c.read, "-o", "jsonl"}, flags...)...)
}

// rows reads rows until there are so many, and checks that each number of a row is there once.
func (f *following) rows(n int, check func(row map[string]any)) {
	f.t.Helper()
	seen := make(map[int]bool, n)
	for len(seen) < n {
		var row map[string]any
		line := f.line()
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			f.t.Fatalf("%q: %v", line, err)
		}
		at, ok := row["n"].(float64)
		if !ok || seen[int(at)] {
			f.t.Fatalf("the row %q has no number, or one that was there before", line)
		}
		seen[int(at)] = true
		check(row)
	}
}

// stillRuns: a query that follows has ended with nothing.
func (f *following) stillRuns() {
	f.t.Helper()
	select {
	case <-f.ended:
		f.t.Fatalf("the query has ended:\n%s", f.stderr)
	default:
	}
}

// TestSchemaChangeWhileWriting: a category's schema changes in every compatible way while it is written to and read. Queries that run keep
// the version that they began with and get every row; new ones see the new columns, over what was written before and after.
func TestSchemaChangeWhileWriting(t *testing.T) {
	for _, kind := range []string{"direct calls", "processes on files"} {
		t.Run(kind, func(t *testing.T) {
			for _, k := range kinds {
				if k.name == kind {
					schemaChange(t, k.start(t))
				}
			}
		})
	}
}

func schemaChange(t *testing.T, c *cell) {
	dir := t.TempDir()
	schemaFile := func(name, fields string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("format: json\nfields:\n"+fields), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// n is widened, agent renamed, and zone is new.
	before := schemaFile("before.yaml", "  - {name: n, type: int32}\n  - {name: agent, type: string, nullable: true}\n")
	after := schemaFile("after.yaml", "  - {name: n, type: int64}\n  - {name: client, type: string, nullable: true, aliases: [agent]}\n"+
		"  - {name: zone, type: string, nullable: true}\n")
	ok(t, nil, "category", "create", "events", "--schema", before, "--server", c.read)

	const rounds, each, change = 24, 50, 8
	row := func(n int) string {
		if n < change*each {
			return fmt.Sprintf(`{"n":%d,"agent":"a%d"}`, n, n) + "\n"
		}
		// Rows of the new kind have the new name, and the writers of the old kind are still there.
		if n%2 == 0 {
			return fmt.Sprintf(`{"n":%d,"agent":"a%d"}`, n, n) + "\n"
		}
		return fmt.Sprintf(`{"n":%d,"client":"a%d","zone":"z"}`, n, n) + "\n"
	}
	changed := make(chan struct{})
	writing := make(chan error, 1)
	go func() {
		for i := range rounds {
			var input bytes.Buffer
			for n := i * each; n < (i+1)*each; n++ {
				input.WriteString(row(n))
			}
			cmd := program.Command(t.Context(), program.Binary(), "produce", "events", "--server", c.write, "--ack", "committed")
			cmd.Stdin = &input
			if out, err := cmd.CombinedOutput(); err != nil {
				writing <- fmt.Errorf("%w: %s", err, out)
				return
			}
			if i == change+2 {
				<-changed // rows of the new kind are written under the old schema, too
			}
		}
		writing <- nil
	}()
	const total = rounds * each
	old := []*following{
		followQuery(t, c, "SELECT n, agent FROM events"),
		followQuery(t, c, "SELECT n, agent FROM events WHERE n >= 0", "--local"),
	}
	for _, f := range old {
		if _, err := f.lines.Peek(1); err != nil { // then it is bound to the first version
			t.Fatalf("%v\n%s", err, f.stderr)
		}
	}
	ok(t, nil, "schema", "set", "events", after, "--server", c.read)
	fresh := []*following{
		followQuery(t, c, "SELECT n, client, zone FROM events"),
		followQuery(t, c, "SELECT n, client, zone FROM events WHERE n >= 0", "--local"),
	}
	close(changed)
	if r := cli(t, nil, "query", "SELECT n, agent FROM events", "--server", c.read); r.Code != 2 || !strings.Contains(string(r.Stderr), "agent") {
		t.Errorf("the old name in a new query: exit code %d\n%s", r.Code, r.Stderr)
	}
	for _, f := range old {
		f.rows(total, func(r map[string]any) {
			n := int(r["n"].(float64)) //nolint:forcetypeassert // looked at before
			var want any = fmt.Sprintf("a%d", n)
			if n >= change*each && n%2 == 1 {
				want = nil // the version that it keeps knows nothing of the new name
			}
			if r["agent"] != want || len(r) > 2 {
				t.Fatalf("a query of before has the row %v", r)
			}
		})
	}
	for _, f := range fresh {
		f.rows(total, func(r map[string]any) {
			n := int(r["n"].(float64)) //nolint:forcetypeassert // looked at before
			var zone any
			if n >= change*each && n%2 == 1 {
				zone = "z"
			}
			if r["client"] != fmt.Sprintf("a%d", n) || r["zone"] != zone {
				t.Fatalf("a query of after has the row %v", r)
			}
		})
	}
	if err := <-writing; err != nil {
		t.Fatal(err)
	}
	for _, f := range append(old, fresh...) {
		f.stillRuns()
	}
	got := string(ok(t, nil, "query", "SELECT count(*) AS rows, count(client) AS clients, count(zone) AS zones, max(n) AS most FROM events WHERE _error IS NULL", "--server", c.read, "-o", "csv"))
	if want := fmt.Sprintf("rows,clients,zones,most\r\n%d,%d,%d,%d\r\n", total, total, (total-change*each)/2, total-1); got != want {
		t.Errorf("at the end %q, want %q", got, want)
	}
}
