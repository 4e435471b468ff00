package test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestAuditTrail: what administrators did and what was denied is in a category that SQL reads, by name; nobody but the cell writes to it.
func TestAuditTrail(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	admin := os.Getenv("SCRIBE_TOKEN")
	program.OK(t, nil, "category", "create", "orders")
	writer := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--name", "shop", "--can", "write:*")))
	wantCode(t, program.Run(t, nil, "category", "create", "orders"), 1)
	t.Setenv("SCRIBE_TOKEN", writer)
	program.OK(t, strings.NewReader("one\n"), "produce", "orders")
	wantCode(t, program.Run(t, nil, "tail", "orders", "--until-end"), 4)
	wantCode(t, program.Run(t, nil, "category", "delete", "orders", "--yes"), 4)
	if r := program.Run(t, strings.NewReader(`{"action": "nothing happened"}`+"\n"), "produce", "_audit"); r.Code != 4 {
		t.Errorf("who may write everything writes to the trail: exit code %d\n%s", r.Code, r.Stderr)
	}
	t.Setenv("SCRIBE_TOKEN", admin)

	type line struct{ Action, Target, Outcome, Reason, Principal, Kind, Token, Address string }
	var lines []line
	find := func(of func(line) bool) bool { return slices.ContainsFunc(lines, of) }
	wants := map[string]func(line) bool{
		"a category that was created": func(l line) bool {
			return l.Action == "CreateCategory" && l.Target == "orders" && l.Outcome == "done" && strings.HasPrefix(l.Principal, "admin") && l.Token != "" && strings.HasPrefix(l.Address, "127.0.0.1:")
		},
		"a token that was issued": func(l line) bool { return l.Action == "IssueToken" && l.Target == "shop" && l.Outcome == "done" },
		"a failure": func(l line) bool {
			return l.Action == "CreateCategory" && l.Target == "orders" && l.Outcome == "failed" && l.Reason == "category_exists"
		},
		"a read that was denied": func(l line) bool {
			return l.Action == "call /scribe.v1.ReadStreamService/Stream" && l.Outcome == "denied" && l.Principal == "shop" && l.Reason != ""
		},
		"a false trail": func(l line) bool { return l.Target == "_audit" && l.Outcome == "denied" && l.Principal == "shop" },
	}
	var missing string
	defer func() {
		if t.Failed() {
			t.Logf("missing: %s in\n%+v", missing, lines)
		}
	}()
	eventually(t, waitLimit, "the trail has it all", func() bool {
		r := program.Run(t, nil, "query", "SELECT action, target, outcome, reason, principal, kind, token, address FROM _audit", "-o", "jsonl")
		lines, missing = nil, string(r.Stderr)
		for text := range strings.Lines(string(r.Stdout)) {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err, text)
			}
			lines = append(lines, l)
		}
		for name, of := range wants {
			if !find(of) {
				missing = name
				return false
			}
		}
		return true
	})
	if find(func(l line) bool { return l.Action == "nothing happened" }) {
		t.Error("somebody else wrote to the trail")
	}
	if find(func(l line) bool { return l.Outcome == "allowed" }) {
		t.Error("access to data is noted, which nobody has asked for")
	}
	_, secret, _ := strings.Cut(strings.TrimPrefix(writer, "scribe_"), "_") // which may have the separator in it
	if all := program.OK(t, nil, "tail", "_audit", "--from", "earliest", "--until-end", "-o", "raw"); strings.Contains(string(all), secret) {
		t.Error("the trail has a token")
	}
}

// TestAuditDataAccess: where it is asked for, SQL tells from the trail who wrote, read, queried and used groups of which category, how often, and what goes on.
func TestAuditDataAccess(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--secure", "--audit-data-access", "1s", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	admin := os.Getenv("SCRIBE_TOKEN")
	program.OK(t, nil, "category", "create", "orders")
	shop := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--name", "shop", "--can", "write,read,query,group:orders")))
	stranger := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--name", "stranger", "--can", "write:other")))
	client := secureClient(t)
	ask := func(ctx context.Context, path string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, up.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+shop)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		if res.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s", path, res.Status)
		}
		return res
	}
	t.Setenv("SCRIBE_TOKEN", stranger)
	wantCode(t, program.Run(t, strings.NewReader("one\n"), "produce", "orders"), 4)
	t.Setenv("SCRIBE_TOKEN", shop)
	for range 2 {
		program.OK(t, strings.NewReader("one\ntwo\n"), "produce", "orders")
	}
	program.OK(t, nil, "tail", "orders", "--from", "earliest", "--until-end", "--group", "billing")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask(ctx, "/v1/tail/orders?from=latest")
	const queries = 3
	for range queries {
		if _, err := io.Copy(io.Discard, ask(t.Context(), "/v1/query?sql="+url.QueryEscape("SELECT count(*) AS n FROM orders")).Body); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SCRIBE_TOKEN", admin)

	type access struct {
		Principal, Action string
		Calls, Most       int64
	}
	var (
		seen map[string]access
		last string
	)
	defer func() {
		if t.Failed() {
			t.Logf("seen: %v\n%s", seen, last)
		}
	}()
	look := func() {
		r := program.Run(t, nil, "query", "SELECT principal, action, sum(calls) AS calls, max(open) AS most FROM _audit WHERE outcome = 'allowed' AND target = 'orders' GROUP BY principal, action", "-o", "jsonl")
		seen, last = map[string]access{}, string(r.Stderr)
		for text := range strings.Lines(string(r.Stdout)) {
			var a access
			if err := json.Unmarshal([]byte(text), &a); err != nil {
				t.Fatal(err, text)
			}
			seen[a.Principal+" "+a.Action] = a
		}
	}
	eventually(t, waitLimit, "the trail has all access", func() bool {
		look()
		// A group's member and a tail read. Each produce is a request at least.
		return seen["shop write"].Calls >= 2 && seen["shop read"].Calls >= 2 && seen["shop group"].Calls >= 2 && seen["shop query"].Calls >= queries
	})
	if a := seen["shop query"]; a.Calls != queries || a.Most < 1 {
		t.Errorf("%d queries are %+v", queries, a)
	}
	if seen["shop read"].Most < 1 {
		t.Errorf("the tail that goes on is not seen: %+v", seen["shop read"])
	}
	if len(seen) != 4 {
		t.Errorf("seen is %v, want what shop did, and nothing of who was denied or of the cell itself", seen)
	}
	going := func() int {
		var row struct{ N int }
		text := program.OK(t, nil, "query", "SELECT count(*) AS n FROM _audit WHERE action = 'read' AND target = 'orders' AND calls IS NULL AND open = 1", "-o", "jsonl")
		if err := json.Unmarshal(text, &row); err != nil {
			t.Fatal(err, string(text))
		}
		return row.N
	}
	eventually(t, waitLimit, "the tail is in further intervals", func() bool { return going() >= 2 })
	rate := program.OK(t, nil, "query", "SELECT principal, sum(calls) / sum(seconds) AS calls_per_second FROM _audit WHERE outcome = 'allowed' AND action = 'write' GROUP BY principal", "-o", "jsonl")
	if !strings.Contains(string(rate), `"principal":"shop"`) {
		t.Errorf("rates: %s", rate)
	}
}
