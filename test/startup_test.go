package test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"scribe/test/program"
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
		{"every fault of a configuration", []string{"up", "--config", config}, 2, []string{"listen (--listen):", "blobs.kind (--blobs):", "log.level (--log-level):", "log.format (--log-format):"}},
		{"unknown field", []string{"up", "--config", typo}, 2, []string{"typo.yaml", "lisen"}},
		{"unknown role", []string{"serve", "--roles", "batcher,baker"}, 2, []string{"baker", "writeproxy"}},
		{"roles without a control plane", []string{"serve", "--roles", "batcher,readstream"}, 2, []string{"control (--control):", "metalog (--metalog):"}},
		{"unknown flag", []string{"up", "--dta", "x"}, 2, []string{"--dta", "--help"}},
		{"unknown command", []string{"upp"}, 2, []string{"upp"}},
		{"open to everybody", []string{"up", "--listen", ":0"}, 2, []string{"listen (--listen):", "--secure", "--tls-client-ca", "--insecure"}},
		{"an agent open to everybody", []string{"agent", "--upstream", "http://127.0.0.1:1", "--listen", ":0"}, 2, []string{"listen (--listen):", "--tls-client-ca", "--insecure"}},
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
	closed := program.Reserve(t)
	none := filepath.Join(t.TempDir(), "none")
	ok(t, nil, "category", "create", "access", "--server", up.URL)
	ok(t, strings.NewReader("x\n"), "produce", "access", "--server", up.URL)
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
		{"an invalid checkpoint", 2, []string{"tail", "access", "--server", up.URL, "--from", "someday"}},
		{"an unknown acknowledgement", 2, []string{"produce", "access", "--server", up.URL, "--ack", "maybe"}},
		{"an invalid name to produce to", 2, []string{"produce", "no/slash", "--server", up.URL}},
		{"a shard that can't be", 2, []string{"produce", "access", "--server", up.URL, "--shard", "65536"}},
		{"a small batch", 2, []string{"produce", "access", "--server", up.URL, "--batch-bytes", "1"}},
		{"no shards", 2, []string{"category", "create", "none", "--server", up.URL, "--shards", "0"}},
		{"a query without memory", 2, []string{"query", "SELECT * FROM access", "--server", up.URL, "--max-memory", "1KiB"}},
		{"no rows to infer from", 2, []string{"schema", "infer", "--rows", "0", "-"}},
		{"an unknown format to infer from", 2, []string{"schema", "infer", "--format", "xml", "-"}},
		{"an unknown store to recover from", 2, []string{"recover", "--blobs", "tape", "--to", none}},
		{"an unknown store to inspect", 2, []string{"inspect", "blob", "--blobs", "s3"}},
		{"no blobs to inspect", 3, []string{"inspect", "blob", "--data", none}},
		{"no log to inspect", 3, []string{"inspect", "log", "access", "--data", none}},
		{"no spool to inspect", 3, []string{"inspect", "spool", none}},
		{"no checkpoint to inspect", 3, []string{"inspect", "checkpoint", none}},
		{"no checkpoint in a folder", 1, []string{"inspect", "checkpoint", t.TempDir()}},
		{"nobody listens: bench", 5, []string{"bench", "produce", "--server", closed}},
		{"a wrong group name", 2, []string{"tail", "access", "--server", up.URL, "--group", "a b"}},
		{"a shard that there is not", 3, []string{"tail", "access", "--server", up.URL, "--shards", "7", "--until-end"}},
		{"a read proxy that there is not", 5, []string{"tail", "access", "--server", up.URL, "--read-proxy", closed, "--from", "earliest", "--timeout", "1ms", "-n", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := cli(t, strings.NewReader("x\n"), c.args...)
			if r.Code != c.code {
				t.Errorf("scribe %s: exit code %d, want %d\n%s", strings.Join(c.args, " "), r.Code, c.code, r.Stderr)
			}
			readsWell(t, string(r.Stderr))
		})
	}
	r := cli(t, nil, "category", "describe", "acces", "--server", up.URL)
	if strings.Contains(string(r.Stderr), "access") != suggestsNames() {
		t.Errorf("the error does not suggest the near name:\n%s", r.Stderr)
	}
}

// readsWell checks that an error says nothing twice, and nothing of packages, fields and codes that are the program's own.
func readsWell(t *testing.T, stderr string) {
	t.Helper()
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "time=") {
			continue // a log, which is for those who look into the program
		}
		parts := strings.Split(strings.TrimSuffix(line, "\n"), ": ")
		for i, part := range parts {
			switch part {
			case "consumer", "producer", "record", "checkpoint", "catalog", "not_found", "invalid_argument", "unavailable", "aborted", "failed_precondition":
				if i < len(parts)-1 {
					t.Errorf("%q is a word of the program in %q", part, line)
				}
			}
			if i > 0 && part == parts[i-1] {
				t.Errorf("%q stands twice in %q", part, line)
			}
		}
	}
}

// TestUnwantedOutput: a command whose reader has seen enough ends in good order.
func TestUnwantedOutput(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	defer up.Stop()
	ok(t, strings.NewReader("x\n"), "produce", "access", "--server", up.URL)
	for _, args := range [][]string{{"inspect", "log", "access"}, {"category", "list", "--json"}, {"status"}, {"status", "--json"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program.Binary(), append(args, "--server", up.URL)...)
		cmd.Stdout, cmd.Stderr = w, &stderr
		if err := errors.Join(cmd.Run(), w.Close()); err != nil || strings.Contains(stderr.String(), "pipe") {
			t.Errorf("scribe %s: %v\n%s", strings.Join(args, " "), err, &stderr)
		}
	}
}

// TestEndBeforeReady: a process that is told to end while it waits for its control plane does so at once, and has lost nothing.
func TestEndBeforeReady(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // it takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	f := followed(t, "serve", "--roles", "batcher", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0",
		"--control", "http://"+l.Addr().String(), "--metalog", "http://"+l.Addr().String())
	c, err := l.Accept() // it asks, so its signals are handled
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	f.signal(syscall.SIGTERM)
	if code := f.code(); code != 0 {
		t.Errorf("exit code %d\n%s", code, f.stderr)
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
