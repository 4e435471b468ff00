package test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestTokens: a token does what its rules say, over the command line, curl and files, and nothing without it does anything.
func TestTokens(t *testing.T) {
	c := startClosed(t)
	program.OK(t, nil, "category", "create", "web.access")
	writer := c.issue("--can", "write:web.*", "--ttl", "1h", "--name", "frontend")
	reader := c.issue("--can", "read:web.access")
	if strings.Contains(writer, "\n") || !strings.HasPrefix(writer, "scribe_") {
		t.Errorf("a token is printed as %q", writer)
	}
	c.as(writer, func() {
		program.OK(t, strings.NewReader("one\n"), "produce", "web.access")
		wantCode(t, program.Run(t, nil, "tail", "web.access", "--from", "earliest", "--until-end"), 4, "may not")
		wantCode(t, program.Run(t, strings.NewReader("x\n"), "produce", "other"), 4, "may not write to category")
		wantCode(t, program.Run(t, nil, "token", "list"), 4)
		wantCode(t, program.Run(t, nil, "grant", "frontend", "all:*"), 4)
	})
	c.as(reader, func() {
		sameBytes(t, "what a reader reads", program.OK(t, nil, "tail", "web.access", "--from", "earliest", "--until-end", "-o", "raw"), []byte("one\n"))
		wantCode(t, program.Run(t, strings.NewReader("x\n"), "produce", "web.access"), 4, "may not")
	})
	c.as("", func() {
		wantCode(t, program.Run(t, nil, "status"), 4, "proves nothing")
		wantCode(t, program.Run(t, strings.NewReader("x\n"), "produce", "web.access"), 4)
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(reader+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("SCRIBE_TOKEN_FILE", file)
		sameBytes(t, "what a reader with a file reads", program.OK(t, nil, "tail", "web.access", "--from", "earliest", "--until-end", "-o", "raw"), []byte("one\n"))
		t.Setenv("SCRIBE_TOKEN_FILE", "")
	})
	c.as("scribe_wrong", func() { wantCode(t, program.Run(t, nil, "status"), 4, "not one of this cell") })

	const publish = "/scribe.v1.WriteService/Publish"
	const message = `{"category": "web.access", "messages": [{"text": "two"}]}`
	for token, want := range map[string]int{writer: http.StatusOK, reader: http.StatusForbidden, "": http.StatusUnauthorized, "scribe_x": http.StatusUnauthorized} {
		if status, text := c.get(http.MethodPost, publish, token, message); status != want {
			t.Errorf("publish with %.12q: %d, want %d: %s", token, status, want, text)
		}
	}
	watcher := c.issue("--can", "monitor:*", "--name", "prometheus")
	for path, wants := range map[string][4]int{ // without a token, as a writer, as Prometheus, as an administrator
		"/livez": {200, 200, 200, 200}, "/readyz": {200, 200, 200, 200}, "/metrics": {401, 403, 200, 200}, "/debug/pprof/": {401, 403, 403, 404}, "/v1/status": {401, 200, 200, 200},
		"/v1/traffic?interval=100ms": {401, 403, 200, 200}, "/v1/tail/web.access?until_end=1": {401, 403, 403, 200},
		"/": {200, 200, 200, 200}, "/console/app.js": {200, 200, 200, 200}, "/console/none.js": {404, 404, 404, 404}, "/nothing": {401, 403, 403, 403},
	} {
		for i, token := range []string{"", writer, watcher, c.admin} {
			if status, _ := c.get(http.MethodGet, path, token, ""); status != wants[i] {
				t.Errorf("GET %s with %.12q: %d, want %d", path, token, status, wants[i])
			}
		}
	}
	for token, want := range map[string]int{writer: 200, reader: 403, "": 401} {
		if status, text := c.get(http.MethodPost, "/v1/lines/web.access", token, "three\n"); status != want {
			t.Errorf("lines with %.12q: %d, want %d: %s", token, status, want, text)
		}
	}

	c.as(watcher, func() {
		wantCode(t, program.Run(t, nil, "status"), 0, "healthy", "batcher")
		wantCode(t, program.Run(t, nil, "top", "-o", "json"), 0, "web.access")
		wantCode(t, program.Run(t, nil, "token", "list"), 4, "may not")
		wantCode(t, program.Run(t, nil, "category", "describe", "web.access"), 4)
		wantCode(t, program.Run(t, nil, "category", "delete", "web.access", "--yes"), 4)
	})

	var listed []struct{ ID, Principal, State string }
	for line := range strings.Lines(string(program.OK(t, nil, "token", "list", "-o", "json"))) {
		var l struct{ ID, Principal, State string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		listed = append(listed, l)
	}
	id := strings.Split(writer, "_")[1]
	program.OK(t, nil, "token", "revoke", id)
	wantCode(t, program.Run(t, nil, "token", "list"), 0, "frontend", "revoked", "write:web.*")
	if len(listed) != 4 {
		t.Errorf("listed: %v", listed)
	}
	wantCode(t, program.Run(t, nil, "token", "revoke", "nothing"), 3, "no token with that id")
	wantCode(t, program.Run(t, nil, "token", "issue"), 2, "rules")
	wantCode(t, program.Run(t, nil, "token", "issue", "--can", "read"), 2, "PERMISSION:PATTERN")
}

// TestGrantCommands: grants, roles and their explanation, as the command line shows them.
func TestGrantCommands(t *testing.T) {
	c := startClosed(t)
	program.OK(t, nil, "category", "create", "pages", "--owner", "web")
	program.OK(t, nil, "grant", "role:web", "write,read:owner=web")
	program.OK(t, nil, "grant", "alice", "role:web", "query:*")
	alice := c.issue("--name", "alice")
	c.as(alice, func() {
		program.OK(t, strings.NewReader("one\n"), "produce", "pages")
		sameBytes(t, "what alice reads", program.OK(t, nil, "tail", "pages", "--from", "earliest", "--until-end", "-o", "raw"), []byte("one\n"))
		wantCode(t, program.Run(t, nil, "category", "delete", "pages"), 4)
	})
	wantCode(t, program.Run(t, nil, "access", "check", "--as", "alice", "--do", "read", "--on", "pages"), 0, "allowed: write,read:owner=web, of role:web")
	wantCode(t, program.Run(t, nil, "access", "check", "--as", "alice", "--do", "manage", "--on", "pages"), 4, "denied: no rule allows it")
	wantCode(t, program.Run(t, nil, "grants"), 0, "alice", "query:* role:web", "write,read:owner=web")
	program.OK(t, nil, "revoke", "alice", "role:web")
	wantCode(t, program.Run(t, nil, "access", "check", "--as", "alice", "--do", "read", "--on", "pages"), 4)
	wantCode(t, program.Run(t, nil, "revoke", "alice", "read:x"), 3)
	program.OK(t, nil, "revoke", "alice", "--all")
	wantCode(t, program.Run(t, nil, "grants", "-o", "json"), 0, `{"principal":"role:web"`)
}
