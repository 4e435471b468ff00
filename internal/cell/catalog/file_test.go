package catalog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

var exampleSnapshot = FileCopy{
	Revision: 258, SavedAt: 7,
	Categories: []*scribev1.Category{{Name: "a", Id: 3, Revision: 9, Shards: 1}, {Name: "b", Id: 4, Revision: 258, Shards: 2}},
}

// goldenFile is exampleSnapshot in version 1.
const goldenFile = "53434154" + "01000000" + "0201000000000000" + "0700000000000000" + "02000000" + "00000000" +
	"09000000" + "0a0161" + "1003" + "1809" + "3001" + "0a000000" + "0a0162" + "1004" + "188202" + "3002" + "3a260113"

func encoded(t testing.TB, s FileCopy) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encodeSnapshot(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func equalSnapshots(a, b FileCopy) bool {
	if a.Revision != b.Revision || a.SavedAt != b.SavedAt || len(a.Categories) != len(b.Categories) {
		return false
	}
	for i := range a.Categories {
		if !proto.Equal(a.Categories[i], b.Categories[i]) {
			return false
		}
	}
	return true
}

func TestGolden(t *testing.T) {
	file := encoded(t, exampleSnapshot)
	if got := hex.EncodeToString(file); got != goldenFile {
		t.Errorf("%s, want %s", got, goldenFile)
	}
	got, err := decodeSnapshot(bytes.NewReader(file))
	if err != nil || !equalSnapshots(got, exampleSnapshot) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestDamage flips every bit and cuts at every byte: nothing goes unnoticed.
func TestDamage(t *testing.T) {
	file := encoded(t, exampleSnapshot)
	for bit := range len(file) * 8 {
		b := bytes.Clone(file)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeSnapshot(bytes.NewReader(b)); !errors.Is(err, errDamaged) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
	for n := range file {
		if _, err := decodeSnapshot(bytes.NewReader(file[:n])); !errors.Is(err, errDamaged) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := decodeSnapshot(bytes.NewReader(append(file, 0))); !errors.Is(err, errDamaged) {
		t.Errorf("a byte too many: %v", err)
	}
	newer := bytes.Clone(file)
	newer[4] = 2
	if _, err := decodeSnapshot(bytes.NewReader(newer)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("a newer file: %v", err)
	}
	for _, categories := range [][]*scribev1.Category{
		{{Name: "a", Id: 1}, {Name: "a", Id: 2}}, {{Name: "a", Id: 1}, {Name: "b", Id: 1}}, {{Name: "/", Id: 1}}, {{Name: "a"}},
	} {
		if _, err := decodeSnapshot(bytes.NewReader(encoded(t, FileCopy{Categories: categories}))); !errors.Is(err, errDamaged) {
			t.Errorf("%v: %v", categories, err)
		}
	}
}

func FuzzDecodeSnapshot(f *testing.F) {
	f.Add(encoded(f, exampleSnapshot))
	f.Add(encoded(f, FileCopy{}))
	f.Fuzz(func(t *testing.T, file []byte) {
		// Most of what a fuzzer finds fails at the checksum: give it a right one as well.
		fixed := bytes.Clone(file)
		if n := len(fixed) - 4; n >= 0 {
			binary.LittleEndian.PutUint32(fixed[n:], crc32.Checksum(fixed[:n], castagnoli))
		}
		for _, b := range [][]byte{file, fixed} {
			s, err := decodeSnapshot(bytes.NewReader(b))
			if err != nil {
				if !errors.Is(err, errDamaged) {
					t.Fatalf("%v does not match errDamaged", err)
				}
				continue
			}
			if again, err := decodeSnapshot(bytes.NewReader(encoded(t, s))); err != nil || !equalSnapshots(s, again) {
				t.Fatalf("%+v became %+v, %v", s, again, err)
			}
		}
	})
}

// TestFile: a view that starts while the control plane is unavailable serves with an earlier view's categories.
func TestFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "categories")
	withFile := func(c *ViewConfig) { c.File = file }
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("a", 1, false)
		p.put("b", 2, false)
		v := newView(t, p, withFile)
		closeView := runView(t, v)
		if s := readFile(t, file); len(s.Categories) != 2 || s.Revision != 2 || s.SavedAt != time.Now().UnixMicro() {
			t.Errorf("after the first sync the file has %+v", s)
		}
		// Changes are written at most so often, and when the view closes.
		p.put("c", 3, true)
		p.remove("a", true)
		advance(29 * time.Second)
		if s := readFile(t, file); len(s.Categories) != 2 || s.Revision != 2 {
			t.Errorf("the file was written too often: %+v", s)
		}
		advance(time.Second)
		if s := readFile(t, file); len(s.Categories) != 2 || s.Revision != 4 {
			t.Errorf("the file was not written: %+v", s)
		}
		p.put("d", 4, true)
		synctest.Wait()
		closeView()
		if s := readFile(t, file); len(s.Categories) != 3 || s.Revision != 5 {
			t.Errorf("the file was not written at the end: %+v", s)
		}

		p.set(func(p *plane) { p.mu.down = true })
		v = newView(t, p, withFile)
		<-v.Ready()
		closeView = runView(t, v)
		if got := names(v); got != "b c d" || v.Revision() != 5 || v.InSync() {
			t.Errorf("from the file: %q at %d", got, v.Revision())
		}
		wantID(t, v, "c", 3)
		// The control plane comes back with less: it is right.
		p.remove("c", false)
		p.set(func(p *plane) { p.mu.down = false })
		advance(5 * time.Second)
		if got := names(v); got != "b d" || !v.InSync() {
			t.Errorf("after the outage: %q", got)
		}
		closeView()
	})
	if left, err := filepath.Glob(file + "*"); err != nil || len(left) != 1 {
		t.Errorf("files left: %q, %v", left, err)
	}
}

func readFile(t *testing.T, file string) FileCopy {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSnapshot(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDamagedFile: a view starts empty, counts it, and replaces the file.
func TestDamagedFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "categories")
	b := encoded(t, exampleSnapshot)
	b[50] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		v := newView(t, p, func(c *ViewConfig) { c.File = file })
		if v.Len() != 0 || v.Revision() != 0 {
			t.Errorf("%v from a damaged file", v)
		}
		select {
		case <-v.Ready():
			t.Error("ready with a damaged file")
		default:
		}
		p.put("a", 1, false)
		runView(t, v)()
		if s := readFile(t, file); len(s.Categories) != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestFileCannotBeWritten: the view goes on.
func TestFileCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("a", 1, false)
		v := newView(t, p, func(c *ViewConfig) { c.File = filepath.Join(t.TempDir(), "nowhere", "categories") })
		defer runView(t, v)()
		wantID(t, v, "a", 1)
	})
}
