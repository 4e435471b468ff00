package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestReady: the exit code is what a health check looks at, and the text is what the process says.
func TestReady(t *testing.T) {
	answer, code := "ok\n", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			code = http.StatusNotFound
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	run := func(args ...string) (string, error) {
		var out strings.Builder
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs(append([]string{"ready"}, args...))
		err := root.Execute()
		return out.String(), err
	}
	host := strings.TrimPrefix(server.URL, "http://")
	for _, address := range []string{server.URL, server.URL + "/", host} {
		if out, err := run("--server", address); err != nil || out != "ok\n" {
			t.Errorf("%s: %q, %v", address, out, err)
		}
	}
	answer, code = "failing: disk: it is full\n", http.StatusServiceUnavailable
	if _, err := run("--server", host); exitCode(err) != exitUnavailable || !strings.Contains(err.Error(), "failing: disk: it is full") {
		t.Errorf("%v, exit code %d", err, exitCode(err))
	}
	for _, args := range [][]string{{"--server", "unix:/run/scribe.sock"}, {"--server", host + ",10.0.0.1:7420"}, {"--server", host, "--timeout", "0s"}} {
		if _, err := run(args...); exitCode(err) != exitUsage {
			t.Errorf("%q: %v, exit code %d", args, err, exitCode(err))
		}
	}
	server.Close()
	if _, err := run("--server", host); exitCode(err) != exitUnavailable {
		t.Errorf("nobody answers: %v, exit code %d", err, exitCode(err))
	}
}
