package test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestStatusViews: the views that are made for running queries are shown, for people and for programs, and by category.
func TestStatusViews(t *testing.T) {
	program.OneProcess(t, "it counts what one read proxy shows")
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	c := &cell{write: up.URL, read: up.URL}
	if out := string(ok(t, nil, "status", "views", "--server", c.read)); !strings.Contains(out, "read proxy  "+up.URL) || !strings.Contains(out, "no query is running") {
		t.Errorf("without queries:\n%s", out)
	}
	produce(t, c, "events", []byte("{\"n\":1,\"s\":\"a\"}\n{\"n\":2,\"s\":\"b\"}\n"))
	ok(t, nil, "schema", "infer", "--category", "events", "--set", "--server", c.read)
	q := followQuery(t, c, "SELECT n FROM events WHERE n > 1")
	if line := q.line(); line != "{\"n\":2}\n" {
		t.Fatalf("the first row is %q", line)
	}
	out := string(ok(t, nil, "status", "views", "events", "--server", c.read))
	for _, want := range []string{
		`VIEW +CATEGORY +VERSION +QUERIES +PAYLOADS +HITS +IN +OUT +SELECTIVITY +COLUMNS +PREDICATE\n\d+ +events +1 +1 +1 +0 +\S+B +\S+B +50\.0% +_index,n +n > 1\n`,
		`VIEW +CATEGORY +PAYLOADS +LAST ASKED +QUERY\n\d+ +events +1 +\d+s ago +SELECT n FROM events WHERE n > 1\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s does not match\n%s", want, out)
		}
	}
	var shown []struct {
		ReadProxy string `json:"read_proxy"`
		Views     []struct {
			View          uint64   `json:"view"`
			Category      string   `json:"category"`
			SchemaVersion uint32   `json:"schema_version"`
			Columns       []string `json:"columns"`
			Predicate     string   `json:"predicate"`
			Queries       uint32   `json:"queries"`
			RowsIn        uint64   `json:"rows_in"`
			RowsOut       uint64   `json:"rows_out"`
		} `json:"views"`
		Queries []struct {
			Query string `json:"query"`
			View  uint64 `json:"view"`
		} `json:"queries"`
	}
	if err := json.Unmarshal(ok(t, nil, "status", "views", "-o", "json", "--server", c.read), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 1 || len(shown[0].Views) != 1 || len(shown[0].Queries) != 1 || shown[0].ReadProxy != up.URL {
		t.Fatalf("shown are %+v", shown)
	}
	v, asked := shown[0].Views[0], shown[0].Queries[0]
	if v.Category != "events" || v.SchemaVersion != 1 || strings.Join(v.Columns, ",") != "_index,n" || v.Predicate != "n > 1" || v.Queries != 1 || v.RowsIn != 2 || v.RowsOut != 1 {
		t.Errorf("the view is %+v", v)
	}
	if asked.Query != "SELECT n FROM events WHERE n > 1" || asked.View != v.View {
		t.Errorf("the query is %+v", asked)
	}
	ok(t, nil, "category", "create", "other", "--server", c.read)
	if out := string(ok(t, nil, "status", "views", "other", "--server", c.read)); !strings.Contains(out, "no query is running") {
		t.Errorf("of another category:\n%s", out)
	}
	if r := cli(t, nil, "status", "views", "evnts", "--server", c.read); r.Code != 3 || len(r.Stdout) > 0 || strings.Contains(string(r.Stderr), "events") != suggestsNames() {
		t.Errorf("of a category that does not exist: exit code %d, %q\n%s", r.Code, r.Stdout, r.Stderr)
	}
}
