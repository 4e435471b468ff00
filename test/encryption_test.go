package test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scribe/test/program"
)

// holds reports whether a file of a folder has a text.
func holds(t *testing.T, dir, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, []byte(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// storedKey is a line of scribe key list.
type storedKey struct {
	Category   uint32 `json:"category"`
	Generation uint32 `json:"generation"`
	Wrapper    string `json:"wrapped_with"`
}

func storedKeys(t *testing.T, blobs string) (keys []storedKey) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(ok(t, nil, "key", "list", "--blob-path", blobs)))
	for d.More() {
		var k storedKey
		if err := d.Decode(&k); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	return keys
}

// TestEncryption: the payloads of an encrypted category are nowhere in the store as they were written, are read as ever, by queries too, with new
// keys and after the metadata was lost; a process without the key file reads and writes nothing of it, and says why; and the keys of
// a deleted category are gone.
func TestEncryption(t *testing.T) {
	program.OneProcess(t, "it looks into the folders of one process")
	t.Parallel()
	dir := t.TempDir()
	data, keys := filepath.Join(dir, "data"), filepath.Join(dir, "keys")
	if err := os.WriteFile(keys, ok(t, nil, "key", "new", "first"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(data string, more ...string) (*program.Process, *cell) {
		up := serve(t, nil, append([]string{"up", "--data", data, "--listen", "127.0.0.1:0", "--blob-path", filepath.Join(dir, "blobs")}, more...)...)
		return up, &cell{write: up.URL, read: up.URL}
	}
	// What no compressor makes smaller is in a block that is not encrypted as it was written.
	random := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 4000)
	_, _ = random.Read(noise) // never fails
	noise = bytes.ReplaceAll(noise, []byte("\n"), []byte("_"))
	lines := func(mark string) []byte { return slices.Concat([]byte(mark), noise, []byte(mark), []byte("\n")) }
	up, c := start(data, "--encryption-key-file", keys, "--retention-interval", "100ms")
	ok(t, nil, "category", "create", "payments", "--encrypted", "--server", c.write)
	ok(t, nil, "category", "create", "public", "--server", c.write)
	produce(t, c, "payments", lines("secret"))
	produce(t, c, "public", lines("public"))
	described := string(ok(t, nil, "category", "update", "payments", "--rotate-key", "--server", c.write))
	if !strings.Contains(described, `"key_generation": 2`) {
		t.Errorf("after the rotation it is %s", described)
	}
	wantCode(t, program.Run(t, nil, "category", "update", "public", "--rotate-key", "--server", c.write), 2)
	produce(t, c, "payments", lines("secret-again"))
	want := append(lines("secret"), lines("secret-again")...)
	sameBytes(t, "encrypted", tail(t, c, "payments"), want)
	if got := string(ok(t, nil, "query", "SELECT count(*) FROM payments", "--server", c.read, "-o", "csv")); !strings.Contains(got, "2") {
		t.Errorf("the query says %s", got)
	}
	blobs := filepath.Join(dir, "blobs")
	if holds(t, blobs, "secret") || !holds(t, blobs, "public") {
		t.Error("what is encrypted is in the store, or what is not can't be seen there")
	}
	// A deleted category's key goes with it.
	ok(t, nil, "category", "create", "old", "--encrypted", "--server", c.write)
	produce(t, c, "old", lines("secret"))
	if n := len(storedKeys(t, blobs)); n != 3 {
		t.Errorf("%d keys", n)
	}
	ok(t, nil, "category", "delete", "old", "--yes", "--server", c.write)
	eventually(t, waitLimit, "the key of the deleted category is gone", func() bool { return len(storedKeys(t, blobs)) == 2 })
	list := storedKeys(t, blobs)
	if len(list) != 2 || list[0].Wrapper != "first" || list[1].Generation != 2 {
		t.Errorf("keys %+v", list)
	}
	up.Stop()

	// Who checks blobs checks the content with the keys, and says so without.
	inspect := []string{"inspect", "blob", "--blob-path", blobs}
	r := program.Run(t, nil, inspect...)
	if r.Code != 0 || !strings.Contains(string(r.Stderr), "--encryption-key-file") {
		t.Errorf("without keys: %d %s", r.Code, r.Stderr)
	}
	if r := program.Run(t, nil, append(inspect, "--encryption-key-file", keys)...); r.Code != 0 || strings.Count(string(r.Stderr), "\n") != 1 || !strings.Contains(string(r.Stderr), "their keys were deleted") {
		t.Errorf("with keys: %d %s", r.Code, r.Stderr)
	}

	// Without the file, and with another one.
	up, c = start(data)
	r = program.Run(t, nil, "category", "create", "more", "--encrypted", "--server", c.write)
	if r.Code == 0 || !strings.Contains(string(r.Stderr), "start them with --encryption-key-file first") {
		t.Errorf("an encrypted category without keys: %d %s", r.Code, r.Stderr)
	}
	r = program.Run(t, strings.NewReader("lost\n"), "produce", "payments", "--server", c.write, "--timeout", "2s")
	if r.Code == 0 || !strings.Contains(up.Log.String(), "--encryption-key-file") {
		t.Errorf("produce without keys: %d %s; the server says %s", r.Code, r.Stderr, up.Log)
	}
	sameBytes(t, "public", tail(t, c, "public"), lines("public"))
	up.Stop()
	bad := program.Run(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0", "--blob-path", blobs, "--encryption-key-file", filepath.Join(dir, "nothing"))
	if bad.Code == 0 || !strings.Contains(string(bad.Stderr), "open the key file") {
		t.Errorf("start with a file that is not there: %d %s", bad.Code, bad.Stderr)
	}

	// The metadata is lost, not the store and the key file.
	recovered := filepath.Join(dir, "recovered")
	ok(t, nil, "recover", "--to", recovered, "--blob-path", blobs)
	up, c = start(recovered, "--encryption-key-file", keys)
	sameBytes(t, "recovered", tail(t, c, "payments"), want)
	produce(t, c, "payments", lines("secret-later"))
	want = append(want, lines("secret-later")...)
	sameBytes(t, "recovered, and written to", tail(t, c, "payments"), want)
	if holds(t, blobs, "secret") {
		t.Error("what is written after the recovery is not encrypted")
	}
	up.Stop()
}
