package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRedactSecrets: what looks like a secret is replaced, and metrics stay as they are.
func TestRedactSecrets(t *testing.T) {
	token := "scribe_abcdefghij23_" + strings.Repeat("Aa0_-", 8) + "xyz"
	for text, want := range map[string]string{
		"a token " + token + " in a text":                                         "a token [token] in a text",
		"Authorization: Bearer abcdefgh.ijk":                                      "Authorization: Bearer [credentials]",
		"dial http://ada:pa55@10.0.0.1:9000/x: refused":                           "dial http://[user]@10.0.0.1:9000/x: refused",
		"secret_key: abc/def+1=, region: eu":                                      "secret_key: [secret], region: eu",
		`{"access_key":"AKIA1","aws_secret_access_key" : "s3cr"}`:                 `{"access_key":"[secret]","aws_secret_access_key" : "[secret]"}`,
		"https://s3/x?X-Amz-Signature=abc&y=1 password=hunter2":                   "https://s3/x?X-Amz-Signature=[secret]&y=1 password=[secret]",
		"-----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY-----\nrest": "[private key]\nrest",
		"-----BEGIN PRIVATE KEY-----\nMHc":                                        "[private key]",
		"scribe_writeproxy_bytes_total{category=\"web.access\"} 5\n":              "scribe_writeproxy_bytes_total{category=\"web.access\"} 5\n",
		"scribe_access_tokens 7\n":                                                "scribe_access_tokens 7\n",
		"http://127.0.0.1:7420/a@b":                                               "http://127.0.0.1:7420/a@b",
	} {
		if got := string(redactSecrets([]byte(text))); got != want {
			t.Errorf("%q:\n got %q\nwant %q", text, got, want)
		}
	}
}

// TestBundleOfAway: of a cell that does not answer, and of a process that says too much, there is a bundle that says so, within its bounds.
func TestBundleOfAway(t *testing.T) {
	large := strings.Repeat("x", bundleFileBytes) + "yz"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			http.Error(w, "not ready: password=hunter2", http.StatusServiceUnavailable)
		case "/metrics":
			_, _ = io.WriteString(w, large)
		case "/debug/pprof/heap":
			http.Redirect(w, r, "/metrics", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	b := &bundle{server: server.URL}
	b.gather(t.Context())
	var out bytes.Buffer
	if err := b.write(&out); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range b.mu.files {
		found[f.name] = string(f.content)
	}
	if got := found["processes/server/readyz.txt"]; got != "not ready: password=[secret]\n" {
		t.Errorf("readyz: %q", got)
	}
	if got := found["processes/server/metrics.txt"]; len(got) != bundleFileBytes {
		t.Errorf("metrics: %d bytes", len(got))
	}
	missing := strings.Join(b.mu.missing, "\n")
	for _, want := range []string{"status: ", "goroutines.txt: 404 Not Found (profiles are served with --pprof)", "heap.pb.gz: 302 Found"} {
		if !strings.Contains(missing, want) {
			t.Errorf("%q is not said to be missing:\n%s", want, missing)
		}
	}
	// The bundle as a whole is bounded, too.
	b.mu.bytes = bundleBytes
	b.addText("more.txt", "", []byte("x"))
	if last := b.mu.missing[len(b.mu.missing)-1]; !strings.Contains(last, "more.txt: the bundle would have more than") {
		t.Errorf("got %s", last)
	}
	// A file that exists stays.
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newRoot()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"debug", "bundle", "-o", file, "--server", server.URL})
	if err := cmd.ExecuteContext(t.Context()); exitCode(err) != exitUsage {
		t.Errorf("over a file: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
}
