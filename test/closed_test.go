package test

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/transport/rpc"
	"scribe/test/program"
)

// closedCell is `scribe up` that only lets in who may.
type closedCell struct {
	*program.Process
	t     *testing.T
	admin string
}

// closedAlone is why cells that tokens close are of one process: several prove to each other who they are with certificates, as in TestSecureNodes.
const closedAlone = "a cell of several processes is closed with certificates: see TestSecureNodes"

// startClosed starts a cell and closes it with an administrator's token. Commands run as the administrator until another token is taken.
func startClosed(t *testing.T, args ...string) *closedCell {
	t.Helper()
	program.OneProcess(t, closedAlone)
	up := serve(t, nil, append([]string{"up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0"}, args...)...)
	t.Cleanup(up.Stop)
	c := &closedCell{Process: up, t: t}
	t.Setenv("SCRIBE_SERVER", up.URL)
	c.admin = c.issue("--can", "all:*", "--name", "admin")
	c.take(c.admin)
	return c
}

// take makes the commands that follow send a token.
func (c *closedCell) take(token string) { c.t.Setenv("SCRIBE_TOKEN", token) }

// issue returns the text of a new token.
func (c *closedCell) issue(flags ...string) string {
	c.t.Helper()
	return strings.TrimSpace(string(program.OK(c.t, nil, append([]string{"token", "issue"}, flags...)...)))
}

// as runs fn with another token.
func (c *closedCell) as(token string, fn func()) {
	c.take(token)
	defer c.take(c.admin)
	fn()
}

// transport returns connections that send a token.
func (c *closedCell) transport(token string) *rpc.Transport {
	t := rpc.NewTransport(nil)
	t.SetToken(token)
	c.t.Cleanup(t.Close)
	return t
}

// get makes a request with a token, and returns its status and its body.
func (c *closedCell) get(method, path, token, body string) (status int, text string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.URL+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// wantCode fails unless a command ends with an exit code, and says some texts and not others.
func wantCode(t *testing.T, r program.Result, code int, says ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d: %s", r.Code, code, r.Stderr)
	}
	for _, text := range says {
		if !strings.Contains(string(r.Stdout)+string(r.Stderr), text) {
			t.Errorf("it does not say %q: %s%s", text, r.Stdout, r.Stderr)
		}
	}
}
