package test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartupErrors: what keeps a server from starting is said in words that help.
func TestStartupErrors(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	up := serve(t, nil, "up", "--data", filepath.Join(dir, "used"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("listen: nowhere\nblobs: {kind: tape}\nlog: {level: loud, format: xml}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	typo := filepath.Join(dir, "typo.yaml")
	if err := os.WriteFile(typo, []byte("lisen: 127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"port taken", []string{"up", "--data", filepath.Join(dir, "a"), "--listen", l.Addr().String()}, 1, []string{l.Addr().String(), "--listen"}},
		{"port of Flight SQL taken", []string{"up", "--data", filepath.Join(dir, "b"), "--listen", "127.0.0.1:0", "--flight", l.Addr().String()}, 1, []string{l.Addr().String(), "another --flight"}},
		{"folder in use", []string{"up", "--data", filepath.Join(dir, "used"), "--listen", "127.0.0.1:0"}, 1, []string{"used", "in use", "--data"}},
		{"folder is a file", []string{"up", "--data", file, "--listen", "127.0.0.1:0"}, 1, []string{file}},
		{"every fault of a configuration", []string{"up", "--config", config}, 2, []string{"listen:", "blobs.kind:", "log.level:", "log.format:"}},
		{"unknown field", []string{"up", "--config", typo}, 2, []string{"typo.yaml", "lisen"}},
		{"unknown role", []string{"serve", "--roles", "batcher,baker"}, 2, []string{"baker", "writeproxy"}},
		{"roles without a control plane", []string{"serve", "--roles", "batcher,readstream"}, 2, []string{"control:", "metalog:"}},
		{"unknown flag", []string{"up", "--dta", "x"}, 2, []string{"--dta", "--help"}},
		{"unknown command", []string{"upp"}, 2, []string{"upp"}},
		{"too many arguments", []string{"tail", "a", "b"}, 2, []string{"--help"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := cli(t, nil, c.args...)
			if r.Code != c.code {
				t.Errorf("exit code %d, want %d\n%s", r.Code, c.code, r.Stderr)
			}
			for _, w := range c.want {
				if !strings.Contains(string(r.Stderr), w) {
					t.Errorf("the error does not name %q:\n%s", w, r.Stderr)
				}
			}
			if len(r.Stdout) > 0 {
				t.Errorf("standard output holds %q", r.Stdout)
			}
		})
	}
}

// TestExitCodes: scripts branch on them.
func TestExitCodes(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--auto-create=false")
	defer up.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "category", "create", "access", "--server", up.URL)
	for _, c := range []struct {
		name string
		code int
		args []string
	}{
		{"tail an unknown category", 3, []string{"tail", "acces", "--server", up.URL, "--until-end"}},
		{"produce to an unknown category", 3, []string{"produce", "acces", "--server", up.URL}},
		{"describe an unknown category", 3, []string{"category", "describe", "acces", "--server", up.URL}},
		{"create one that exists", 1, []string{"category", "create", "access", "--server", up.URL}},
		{"an invalid name", 2, []string{"category", "create", "no/slash", "--server", up.URL}},
		{"nobody listens: status", 5, []string{"status", "--server", closed}},
		{"nobody listens: tail", 5, []string{"tail", "access", "--server", closed, "--until-end"}},
		{"nobody listens: produce", 5, []string{"produce", "access", "--server", closed, "--timeout", "300ms"}},
		{"an invalid checkpoint", 2, []string{"tail", "access", "--server", up.URL, "--from", "yesterday"}},
		{"an unknown acknowledgement", 2, []string{"produce", "access", "--server", up.URL, "--ack", "maybe"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := cli(t, strings.NewReader("x\n"), c.args...); r.Code != c.code {
				t.Errorf("scribe %s: exit code %d, want %d\n%s", strings.Join(c.args, " "), r.Code, c.code, r.Stderr)
			}
		})
	}
	r := cli(t, nil, "category", "describe", "acces", "--server", up.URL)
	if !strings.Contains(string(r.Stderr), "access") {
		t.Errorf("the error does not suggest the near name:\n%s", r.Stderr)
	}
}

// TestGracefulShutdown: SIGTERM under load loses nothing that was acknowledged at any level.
func TestGracefulShutdown(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	input := []byte(strings.Repeat("acknowledged before it was durable\n", 20_000))
	ok(t, strings.NewReader(string(input)), "produce", "late", "--ack", "none", "--server", up.URL)
	up.Stop()
	up = serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	sameBytes(t, "after SIGTERM", tail(t, &cell{read: up.URL}, "late"), input)
}
