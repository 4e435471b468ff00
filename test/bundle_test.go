package test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"

	"scribe/test/program"
)

// TestBundle: a bundle of a closed cell has what a bug report needs of its processes, and none of the secrets that they and the client have.
func TestBundle(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	up := serve(t, nil, "up", "--secure", "--pprof", "--data", data, "--listen", "127.0.0.1:0")
	defer up.Stop()
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	token := os.Getenv("SCRIBE_TOKEN")
	reader := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--can", "read:web.*")))
	program.OK(t, nil, "category", "create", "web.access")
	file := filepath.Join(dir, "bundle.tar.gz")
	program.OK(t, nil, "debug", "bundle", "-o", file)
	found := readBundle(t, file)
	for _, name := range []string{"MANIFEST.txt", "unreached.txt", "client.txt", "status.json", "categories.jsonl", "top.json"} {
		if len(found[name]) == 0 {
			t.Errorf("no %s", name)
		}
	}
	if got := string(found["unreached.txt"]); got != "nothing\n" {
		t.Errorf("unreached: %s", got)
	}
	for end, want := range map[string]string{"/metrics.txt": "go_goroutines", "/readyz.txt": "ok", "/goroutines.txt": "goroutine ", "/heap.pb.gz": "", "/health.json": "version"} {
		has := false
		for name, content := range found {
			has = has || strings.HasSuffix(name, end) && len(content) > 0 && bytes.Contains(content, []byte(want))
		}
		if !has {
			t.Errorf("no process has %s with %q", end, want)
		}
	}
	if !bytes.Contains(found["categories.jsonl"], []byte("web.access")) || !bytes.Contains(found["client.txt"], []byte("SCRIBE_TOKEN")) {
		t.Errorf("categories %s, client %s", found["categories.jsonl"], found["client.txt"])
	}
	planted := map[string]string{"the administrator's token": token, "its secret": strings.SplitN(token, "_", 3)[2], "a reader's token": reader}
	keys, err := filepath.Glob(filepath.Join(data, "secure", "*.key"))
	if err != nil || len(keys) == 0 {
		t.Fatal(keys, err)
	}
	for _, key := range keys {
		text, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		planted[key] = strings.Split(string(text), "\n")[1]
	}
	for name, content := range found {
		for what, secret := range planted {
			if bytes.Contains(content, []byte(secret)) {
				t.Errorf("%s has %s", name, what)
			}
		}
	}
	// Who may not know is told less, and the bundle says so. A file that exists stays.
	t.Setenv("SCRIBE_TOKEN", reader)
	wantCode(t, program.Run(t, nil, "debug", "bundle", "-o", file), 2)
	other := filepath.Join(dir, "reader.tar.gz")
	program.OK(t, nil, "debug", "bundle", "-o", other)
	if got := string(readBundle(t, other)["unreached.txt"]); !strings.Contains(got, "metrics.txt") && !strings.Contains(got, "status") {
		t.Errorf("unreached by a reader: %s", got)
	}
}

// readBundle returns the files of a bundle, which nobody else may read.
func readBundle(t *testing.T, file string) map[string][]byte {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for files := tar.NewReader(unpacked); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[h.Name], err = io.ReadAll(files); err != nil {
			t.Fatal(err)
		}
	}
}
