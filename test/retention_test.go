package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// hasty are the settings of a collector that somebody waits for, and of a cell without a trail: the blobs are counted.
var hasty = []string{
	"SCRIBE_AUDIT=false",
	"SCRIBE_RETENTION_GRACE=1s", "SCRIBE_RETENTION_LINGER=1s", "SCRIBE_RETENTION_INTERVAL=200ms", "SCRIBE_RETENTION_PIN_LIMIT=0s",
}

// blobFiles are the blobs of a file store.
func blobFiles(t *testing.T, data string) (keys []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(data, "blobs", "blobs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(d.Name(), ".") {
			keys = append(keys, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// eventually waits until a condition holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(within)
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

// TestRetention: messages of a category with the shortest retention go, from the logs and from the disk, over a kill of the process; those of
// another stay; what a deleted category stored goes at once.
func TestRetention(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	start := func() *program.Process { return serve(t, hasty, "up", "--data", data, "--listen", "127.0.0.1:0") }
	up := start()
	c := &cell{write: up.URL, read: up.URL}
	ok(t, nil, "category", "create", "brief", "--retention", "1m", "--server", up.URL)
	ok(t, nil, "category", "create", "deleted", "--retention", "1h", "--server", up.URL)
	began := time.Now()
	for i := range 3 {
		produce(t, c, "brief", fmt.Appendf(nil, "brief %d\n", i))
		produce(t, c, "lasting", fmt.Appendf(nil, "lasting %d\n", i)) // created on first use, for 72 h
	}
	sameBytes(t, "brief, before its time", tail(t, c, "brief"), []byte("brief 0\nbrief 1\nbrief 2\n"))
	produce(t, c, "deleted", []byte("nobody reads this any more\n"))
	if n := len(blobFiles(t, data)); n != 7 {
		t.Fatalf("%d blobs, want 7", n)
	}

	ok(t, nil, "category", "delete", "deleted", "--server", up.URL)
	eventually(t, time.Minute, "the blob of a deleted category is removed", func() bool { return len(blobFiles(t, data)) == 6 })

	up.Kill()
	up = start()
	c.write, c.read = up.URL, up.URL
	eventually(t, 3*time.Minute, "what expired is removed", func() bool { return len(blobFiles(t, data)) == 3 })
	if age := time.Since(began); age < time.Minute {
		t.Errorf("removed after %v", age)
	}
	sameBytes(t, "brief", tail(t, c, "brief"), nil)
	sameBytes(t, "lasting", tail(t, c, "lasting"), []byte("lasting 0\nlasting 1\nlasting 2\n"))
	produce(t, c, "brief", []byte("again\n"))
	sameBytes(t, "brief, written to again", tail(t, c, "brief"), []byte("again\n"))
	ok(t, nil, "inspect", "dangling", "--data", data, "--server", up.URL)
	up.Stop()
	if program.CountNodes(t) > 0 {
		return // their folders are not read without them
	}
	if r := cli(t, nil, "inspect", "dangling", "--data", data, "--offline"); r.Code != 0 || !strings.Contains(string(r.Stderr), "4 blobs") {
		t.Errorf("inspect dangling: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestDangling: a pointer without its blob is damage, a blob without a pointer is not.
func TestDangling(t *testing.T) {
	program.OneProcess(t, "it reads a folder without its process")
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	noTrail := []string{"SCRIBE_AUDIT=false"} // the blobs are moved
	up := serve(t, noTrail, "up", "--data", data, "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "a", []byte("one\n"))
	first := blobFiles(t, data)
	produce(t, c, "a", []byte("two\n"))
	other := filepath.Join(t.TempDir(), "other")
	elsewhere := serve(t, noTrail, "up", "--data", other, "--listen", "127.0.0.1:0")
	produce(t, &cell{write: elsewhere.URL, read: elsewhere.URL}, "a", []byte("of another cell\n"))
	elsewhere.Stop()
	up.Stop()
	find := func(code int, kinds ...string) {
		t.Helper()
		r := cli(t, nil, "inspect", "dangling", "--data", data, "--offline")
		var found []string
		for line := range bytes.Lines(r.Stdout) {
			var v struct{ Kind, Blob string }
			if err := json.Unmarshal(line, &v); err != nil {
				t.Fatal(err)
			}
			found = append(found, v.Kind)
		}
		if r.Code != code || strings.Join(found, " ") != strings.Join(kinds, " ") {
			t.Errorf("exit code %d, %v, want %d, %v\n%s", r.Code, found, code, kinds, r.Stderr)
		}
	}
	find(0)
	move(t, blobFiles(t, other)[0], filepath.Dir(first[0]))
	find(0, "young")
	move(t, first[0], t.TempDir())
	find(1, "young", "missing")
}

// move moves a file into a folder.
func move(t *testing.T, file, dir string) {
	t.Helper()
	if err := os.Rename(file, filepath.Join(dir, filepath.Base(file))); err != nil {
		t.Fatal(err)
	}
}
