package test

import (
	"encoding/json"
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
	_, secret, _ := strings.Cut(strings.TrimPrefix(writer, "scribe_"), "_") // which may have the separator in it
	if all := program.OK(t, nil, "tail", "_audit", "--from", "earliest", "--until-end", "-o", "raw"); strings.Contains(string(all), secret) {
		t.Error("the trail has a token")
	}
}
