package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/test/program"
)

// recoverSummary is a part of what scribe recover prints.
type recoverSummary struct {
	Blobs      int  `json:"blobs"`
	Damaged    int  `json:"blobs_damaged"`
	Lost       int  `json:"records_lost"`
	Messages   int  `json:"messages"`
	Categories int  `json:"categories"`
	DryRun     bool `json:"dry_run"`
}

func recoverRun(t *testing.T, code int, args ...string) (recoverSummary, string) {
	t.Helper()
	r := cli(t, nil, append([]string{"recover"}, args...)...)
	var s recoverSummary
	if r.Code == 0 || r.Code == 6 {
		if err := json.Unmarshal(r.Stdout, &s); err != nil {
			t.Fatalf("%v\n%s\n%s", err, r.Stdout, r.Stderr)
		}
	}
	if r.Code != code {
		t.Fatalf("exit code %d, want %d\n%s\n%s", r.Code, code, r.Stdout, r.Stderr)
	}
	return s, string(r.Stderr)
}

// TestRecover: a cell is killed under writers and loses its metadata. What is recovered from the blobs is read from checkpoints of before,
// without a repetition or a gap, and written to.
func TestRecover(t *testing.T) {
	program.OneProcess(t, "it loses the folders of one process: TestRecoverNodes does this to nodes")
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	start := func(data string, more ...string) *program.Process {
		env := []string{"SCRIBE_AUDIT=false"} // messages and categories are counted
		return serve(t, env, append([]string{"up", "--data", data, "--listen", "127.0.0.1:0"}, more...)...)
	}
	up := start(data)
	c := &cell{write: up.URL, read: up.URL}
	ok(t, nil, "category", "create", "log", "--retention", "100h", "--shards", "2", "--server", up.URL)
	ok(t, nil, "category", "create", "once", "--delivery", "exactly_once", "--server", up.URL)
	ok(t, nil, "category", "create", "ordered", "--repeatable", "sequenced", "--server", up.URL)
	produce(t, c, "ordered", []byte("first\nsecond\n"))
	sameBytes(t, "ordered", tail(t, c, "ordered", "--checkpoint", filepath.Join(dir, "ordered.checkpoint")), []byte("first\nsecond\n"))
	lines := func(name string, from, to int) []byte {
		var b bytes.Buffer
		for i := from; i < to; i++ {
			fmt.Fprintf(&b, "%s %d\n", name, i)
		}
		return b.Bytes()
	}
	checkpoint := func(name string) string { return filepath.Join(dir, name+".checkpoint") }
	names := []string{"log", "once"}
	for round := range 3 {
		for _, name := range names {
			produce(t, c, name, lines(name, 100*round, 100*(round+1)), "--batch-bytes", "4KiB")
		}
		if round == 1 {
			up.Kill()
			up = start(data)
			c.write, c.read = up.URL, up.URL
		}
	}
	for _, name := range names {
		sameBytes(t, name, tail(t, c, name, "--checkpoint", checkpoint(name), "-n", "150"), lines(name, 0, 150))
	}
	up.Kill()
	blobs := filepath.Join(data, "blobs")
	for _, lost := range []string{"metalog", "control"} {
		if err := os.RemoveAll(filepath.Join(data, lost)); err != nil {
			t.Fatal(err)
		}
	}

	to := filepath.Join(dir, "recovered")
	s, notes := recoverRun(t, 0, "--data", data, "--dry-run")
	if _, err := os.Stat(to); err == nil || !s.DryRun || s.Messages != 602 || !strings.Contains(notes, "log: id ") || !strings.Contains(notes, "retention 4d4h, 2 logical shards") {
		t.Errorf("a dry run: %+v\n%s", s, notes)
	}
	if s, _ = recoverRun(t, 0, "--data", data, "--to", to, "--catalog", filepath.Join(data, "catalog")); s.Messages != 602 || s.Lost != 0 || s.Categories != 3 {
		t.Errorf("%+v", s)
	}
	recoverRun(t, 1, "--data", data, "--to", to)
	recoverRun(t, 1, "--data", data, "--to", data)
	recoverRun(t, 2, "--data", data)
	recoverRun(t, 2, "--to", filepath.Join(dir, "x"), "--parallel", "0")
	recoverRun(t, 3, "--data", filepath.Join(dir, "nothing"), "--to", filepath.Join(dir, "x"))

	up = start(to, "--blob-path", blobs)
	c.write, c.read = up.URL, up.URL
	for _, name := range names {
		sameBytes(t, name+", all", tail(t, c, name), lines(name, 0, 300))
		produce(t, c, name, lines(name, 300, 400))
		sameBytes(t, name+", from a checkpoint of before", tail(t, c, name, "--checkpoint", checkpoint(name)), lines(name, 150, 400))
	}
	// The order of a sequenced category is made anew: from a checkpoint of before there is a gap that is told, and then everything.
	produce(t, c, "ordered", []byte("third\n"))
	r := cli(t, nil, "tail", "ordered", "--server", up.URL, "--until-end", "--checkpoint", filepath.Join(dir, "ordered.checkpoint"))
	if !strings.Contains(string(r.Stderr), "messages of ordered are missing") {
		t.Errorf("no gap was told:\n%s", r.Stderr)
	}
	sameBytes(t, "ordered, from a checkpoint of before", r.Stdout, []byte("first\nsecond\nthird\n"))
	sameBytes(t, "ordered, all", tail(t, c, "ordered"), []byte("first\nsecond\nthird\n"))
	ok(t, nil, "inspect", "dangling", "--data", to, "--blob-path", blobs, "--server", up.URL)
	up.Stop()

	// Again, with a blob whose end is lost.
	files := blobFiles(t, data)
	if err := os.Truncate(files[len(files)/2], 400); err != nil {
		t.Fatal(err)
	}
	again := filepath.Join(dir, "again")
	s, notes = recoverRun(t, 6, "--blob-path", blobs, "--to", again)
	found, err := os.ReadFile(filepath.Join(again, "recovery.jsonl"))
	if err != nil || s.Damaged != 1 || !strings.Contains(notes, "damaged: blobs/") || !bytes.Contains(found, []byte(`"kind":"damaged"`)) {
		t.Errorf("%+v, %v\n%s\n%s", s, err, notes, found)
	}
}
