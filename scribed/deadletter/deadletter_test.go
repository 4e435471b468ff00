package deadletter

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

func letter(i int) Letter {
	return Letter{
		Time: time.UnixMicro(1_700_000_000_000_000 + int64(i)), Category: fmt.Sprintf("web.%d", i), Reason: "unknown_category",
		Message: "category web does not exist", Frame: bytes.Repeat([]byte{byte(i)}, 100),
	}
}

// namesOf returns the letter files of a folder, the oldest first.
func namesOf(fs vfs.FS, dir string) (names []string, err error) {
	names, err = fs.List(dir)
	slices.Sort(names)
	return names, err
}

// read returns the letters of a file of a folder.
func read(fs vfs.FS, dir, name string) ([]Letter, error) {
	in, err := fs.Open(fs.PathJoin(dir, name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }() // read only
	b, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	return Decode(b, nil)
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Letter {
			return Letter{
				Time:     time.UnixMicro(rapid.Int64().Draw(t, "time")),
				Category: rapid.StringMatching(`[a-z]{1,255}`).Draw(t, "category"),
				Reason:   rapid.StringMatching(`[a-z_]{1,64}`).Draw(t, "reason"),
				Message:  rapid.StringN(0, 100, 4096).Draw(t, "message"),
				Frame:    rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "frame"),
			}
		}), 1, 5).Draw(t, "letters")
		b, err := Encode(letters, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b, nil)
		if err != nil || !reflect.DeepEqual(got, letters) {
			t.Fatalf("%v, %v", got, err)
		}
		// Every change of a byte and every cut is found, and costs no letter in front of it.
		damaged := bytes.Clone(b)
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		damaged[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if got, err := Decode(damaged, nil); err == nil {
			t.Fatalf("a change at byte %d is not found: %v", at, got)
		}
		got, err = Decode(b[:at], nil)
		whole := fileLen
		for i := range got {
			whole += got[i].encodedLen()
		}
		if (err == nil) != (at == whole) || at < fileLen && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut at %d: %d letters of %d bytes, %v", at, len(got), whole, err)
		}
	})
}

func TestLimits(t *testing.T) {
	for _, change := range []func(*Letter){
		func(l *Letter) { l.Category = "" },
		func(l *Letter) { l.Category = strings.Repeat("x", 256) },
		func(l *Letter) { l.Reason = "" },
		func(l *Letter) { l.Reason = strings.Repeat("x", 65) },
		func(l *Letter) { l.Frame = make([]byte, record.MaxFrameLen+1) },
	} {
		l := letter(1)
		change(&l)
		if _, err := Encode([]Letter{l}, nil); err == nil {
			t.Errorf("encoded %.100v", l)
		}
	}
	l := letter(1)
	l.Message = strings.Repeat("é", 3000)
	b, err := Encode([]Letter{l}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(b, nil); err != nil || got[0].Message != strings.Repeat("é", 2048) {
		t.Errorf("a long message is cut to %d bytes, %v", len(got[0].Message), err)
	}
	b[4] = VersionEncrypted + 1
	if _, err := Decode(b, nil); !errors.Is(err, ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
}

// readHex reads a golden file.
func readHex(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGolden reads the files of the version that is written without encryption.
func TestGolden(t *testing.T) {
	want := []Letter{letter(1), letter(2)}
	b := readHex(t, filepath.Join("testdata", "golden", "v1", "two.hex"))
	got, err := Decode(b, nil)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if again, err := Encode(want, nil); err != nil || !bytes.Equal(again, b) {
		t.Errorf("written differently now: %x, %v", again, err)
	}
}

func TestFolderIsBounded(t *testing.T) {
	fs := vfs.NewMem()
	size := int64(fileLen)
	for i := range 2 {
		l := letter(i)
		size += int64(l.encodedLen())
	}
	cfg := Config{Dir: "dead/letters", MaxBytes: 5 * size, MaxFiles: 3}
	f, err := Open(cfg, Deps{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	put := func(first, count int) {
		t.Helper()
		var letters []Letter
		for i := range count {
			letters = append(letters, letter(first+i))
		}
		if err := f.Put(letters); err != nil {
			t.Fatal(err)
		}
		names, err := namesOf(fs, cfg.Dir)
		got := f.Totals()
		if err != nil || len(names) > cfg.MaxFiles || got.Bytes > cfg.MaxBytes || got.Files != len(names) {
			t.Fatalf("%v, %v, %+v", names, err, got)
		}
	}
	for i := range 5 {
		put(2*i, 2)
	}
	if got := f.Totals(); got.Files != 3 || got.Letters != 10 || got.RemovedFiles != 2 || got.RemovedBytes != 2*size {
		t.Errorf("%+v", got)
	}
	// Another run counts what is there.
	if f, err = Open(cfg, Deps{FS: fs}); err != nil {
		t.Fatal(err)
	}
	if got := f.Totals(); got.Files != 3 || got.Bytes != 3*size {
		t.Errorf("%+v", got)
	}
	put(10, 8) // larger than what is left: the oldest go
	put(20, 1)
	names, err := namesOf(fs, cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, name := range names {
		letters, err := read(fs, cfg.Dir, name)
		if err != nil {
			t.Error(err)
		}
		for i := range letters {
			all = append(all, letters[i].Category)
		}
	}
	if got := strings.Join(all, " "); got != "web.8 web.9 web.10 web.11 web.12 web.13 web.14 web.15 web.16 web.17 web.20" && !strings.HasSuffix(got, "web.16 web.17 web.20") {
		t.Errorf("the folder has %s", got)
	}
	// What was replayed is taken away, which the folder does not mind.
	for _, name := range names {
		if err := fs.Remove(fs.PathJoin(cfg.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	for i := range 4 {
		if err := f.Put([]Letter{letter(30 + i)}); err != nil {
			t.Error(err)
		}
	}
	if names, err = namesOf(fs, cfg.Dir); err != nil || len(names) != 3 {
		t.Errorf("%v, %v", names, err)
	}
	if err := f.Put([]Letter{{Category: "a", Reason: "b", Frame: make([]byte, cfg.MaxBytes)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("larger than the folder: %v", err)
	}
}

// A letter is on disk when Put returns, and half of one is never there.
func TestPowerLossAndFullDisk(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fail := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail && op.Kind == errorfs.OpFileWrite {
			return errors.New("injected")
		}
		return nil
	}))
	cfg := DefaultConfig()
	cfg.Dir = "dead"
	f, err := Open(cfg, Deps{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Put([]Letter{letter(1)}); err != nil {
		t.Fatal(err)
	}
	fail = true
	if err := f.Put([]Letter{letter(2)}); err == nil || f.Totals().Letters != 1 {
		t.Errorf("%v, %+v", err, f.Totals())
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	if out, err := clone.Create("dead/00000000000000000009.dead.tmp", vfs.WriteCategoryUnspecified); err != nil {
		t.Fatal(err)
	} else if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg, Deps{FS: clone}); err != nil {
		t.Fatal(err)
	}
	all, err := clone.List("dead")
	if err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	letters, err := read(clone, "dead", all[0])
	if err != nil || len(letters) != 1 || letters[0].Category != "web.1" {
		t.Errorf("%v, %v", letters, err)
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	_, err := Open(Config{}, Deps{})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"Dir", "MaxBytes", "MaxFiles"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not mentioned in: %v", part, err)
		}
	}
}

// FuzzDecode reads arbitrary bytes: what is accepted encodes to the same bytes.
//
//	go test ./scribed/deadletter -run '^$' -fuzz FuzzDecode -fuzztime 10s
func FuzzDecode(f *testing.F) {
	b, err := Encode([]Letter{letter(1), letter(2)}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte("SCDL\x02\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		letters, err := Decode(b, nil)
		if err != nil || b[4] == VersionEncrypted {
			return
		}
		again, err := Encode(letters, nil)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x is written as %x, %v", b, again, err)
		}
	})
}
