package test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/format/record"
	"scribe/internal/testkit/sample"
)

// TestDamagedBlob flips a byte of a stored blob: the reader gets everything before the damage and an error that names the blob,
// never the damaged bytes; inspect finds the place.
func TestDamagedBlob(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	input := sample.AccessLog()
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "access", input)
	up.Stop()
	ok(t, nil, "inspect", "blob", "--data", data)

	var blobs []string
	err := filepath.WalkDir(filepath.Join(data, "blobs", "blobs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			blobs = append(blobs, path)
		}
		return err
	})
	if err != nil || len(blobs) == 0 {
		t.Fatalf("%d blobs, %v", len(blobs), err)
	}
	// The largest: in the middle of a small one may be its footer.
	var path string
	var whole []byte
	for _, blob := range blobs {
		b, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > len(whole) {
			path, whole = blob, b
		}
	}
	rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // reproducible on purpose
	for range 8 {
		at := rng.IntN(len(whole))
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"inspect", "blob", path}, {"inspect", "blob", "--data", data}} {
			r := cli(t, nil, args...)
			if r.Code != 1 || !strings.Contains(string(r.Stderr), filepath.Base(path)) || !strings.Contains(string(r.Stderr), "at byte ") {
				t.Errorf("byte %d of %d flipped: scribe %s: exit code %d, want 1 and the place:\n%s", at, len(whole), strings.Join(args, " "), r.Code, r.Stderr)
			}
		}
	}
	// A byte in the middle of the payloads, which a reader meets.
	damaged := bytes.Clone(whole)
	damaged[len(whole)/2] ^= 1
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	up = serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	r := cli(t, nil, "tail", "access", "--server", up.URL, "--from", "earliest", "--until-end", "-o", "raw")
	if r.Code != 1 || !strings.Contains(string(r.Stderr), filepath.Base(path)) {
		t.Errorf("tail: exit code %d, want 1 and an error that names the blob:\n%s", r.Code, r.Stderr)
	}
	if !bytes.HasPrefix(input, r.Stdout) || len(r.Stdout) >= len(input) {
		t.Errorf("tail printed %d bytes that are not the beginning of the %d written", len(r.Stdout), len(input))
	}
	r = cli(t, nil, "inspect", "log", "access", "--server", up.URL, "--verify")
	if r.Code != 1 || !strings.Contains(string(r.Stderr), filepath.Base(path)) || !strings.Contains(string(r.Stderr), "LSN ") {
		t.Errorf("inspect log: exit code %d, want 1, the blob and the LSN:\n%s", r.Code, r.Stderr)
	}
	up.Stop()

	// The blob is restored from a backup: everything is there again.
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	up = serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	sameBytes(t, "after the repair", tail(t, &cell{read: up.URL}, "access"), input)
	ok(t, nil, "inspect", "log", "access", "--server", up.URL, "--verify")
	up.Stop()
}

// TestInspectFrame: frames in a file are listed, and the damaged one is named by its offset.
func TestInspectFrame(t *testing.T) {
	var frames []byte
	var b record.Builder
	for _, text := range []string{"one", "two", "three"} {
		if err := b.Reset(frames, record.Envelope{Category: "access"}); err != nil {
			t.Fatal(err)
		}
		if err := b.AppendPayload([]byte(text)); err != nil {
			t.Fatal(err)
		}
		var err error
		if frames, err = b.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	out := ok(t, bytes.NewReader(frames), "inspect", "frame")
	if n := bytes.Count(out, []byte(`"category":"access"`)); n != 3 {
		t.Errorf("%d frames are listed, want 3:\n%s", n, out)
	}
	frames[len(frames)-1] ^= 1
	r := cli(t, bytes.NewReader(frames), "inspect", "frame")
	if h, err := record.ParseHeader(frames); err != nil || r.Code != 1 || !strings.Contains(string(r.Stderr), fmt.Sprintf("frame at byte %d", 2*h.Len)) {
		t.Errorf("exit code %d, want 1 and the offset of the third frame, %d (%v):\n%s", r.Code, 2*h.Len, err, r.Stderr)
	}
}
