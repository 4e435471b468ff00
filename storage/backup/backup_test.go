package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/kv"
)

// site has folders to store, and a store.
type site struct {
	*Backups

	fs    vfs.FS
	store *memory.Store
	now   time.Time
}

func newSite(t *testing.T) *site {
	s := &site{fs: vfs.NewMem(), store: memory.New(), now: time.Now()}
	s.Backups = New(s.store, Options{FS: s.fs, Now: func() time.Time { return s.now }})
	s.write(t, "logs/000001.sst", "table one", "logs/000002.sst", "table two", "logs/MANIFEST-000003", "")
	large := strings.Repeat("x", kv.MaxValue)
	s.writeEntries(t, map[string]string{"a": "1", "b": large, "c": large, "d": large, "e": ""})
	return s
}

// write writes files: name, content, name, content.
func (s *site) write(t *testing.T, files ...string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		err := s.fs.MkdirAll(s.fs.PathDir(files[i]), 0o755)
		var f vfs.File
		if err == nil {
			f, err = s.fs.Create(files[i], vfs.WriteCategoryUnspecified)
		}
		if err == nil {
			_, err = f.Write([]byte(files[i+1]))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (s *site) writeEntries(t *testing.T, entries map[string]string) {
	t.Helper()
	if err := s.fs.MkdirAll("control", 0o755); err != nil {
		t.Fatal(err)
	}
	files := 0
	w := EntriesWriter{Write: func(b []byte) error {
		files++
		s.write(t, fmt.Sprintf("control/control-%d", files), string(b))
		return nil
	}}
	keys := slices.Sorted(func(yield func(string) bool) {
		for k := range entries {
			if !yield(k) {
				return
			}
		}
	})
	for i, k := range keys {
		if err := w.Add(kv.Entry{Key: k, Value: []byte(entries[k]), Revision: uint64(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (s *site) create(t *testing.T, identity string) Info {
	t.Helper()
	s.now = s.now.Add(time.Second)
	info, err := s.Create(t.Context(), Manifest{Watermark: 7, Revision: 9, Store: identity, Program: "v1"}, "logs", "control")
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// keys are those in a store that begin with a prefix.
func (s *site) keys(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	for info, err := range s.store.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// TestBackup: what was stored comes back, and what two backups share is stored once.
func TestBackup(t *testing.T) {
	s := newSite(t)
	first := s.create(t, "A")
	if first.Stored != first.Manifest.Bytes() || len(s.keys(t, useRoot)) > 0 {
		t.Errorf("%+v, uses %v", first, s.keys(t, useRoot))
	}
	s.write(t, "logs/000004.sst", "table three")
	second := s.create(t, "A")
	if second.Stored != uint64(len("table three")) {
		t.Errorf("%d bytes of the second one were stored", second.Stored)
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 2 || all[0].Name != first.Name || all[1].Name != second.Name || !reflect.DeepEqual(all[1].Manifest, second.Manifest) {
		t.Fatalf("%+v, %v", all, err)
	}
	m, err := s.Verify(t.Context(), second.Name)
	if err != nil || m.Watermark != 7 || m.Revision != 9 || m.Program != "v1" || m.Store != "A" || m.Created != s.now.UnixMicro() {
		t.Fatalf("%+v, %v", m, err)
	}
	for range 2 { // the second time everything is there
		if err := s.Fetch(t.Context(), m.Logs, "fetched"); err != nil {
			t.Fatal(err)
		}
	}
	names, err := s.fs.List("fetched")
	if err != nil || len(names) != 4 {
		t.Errorf("%v, %v", names, err)
	}
	entries := map[string]int{}
	if err := s.ReadEntries(t.Context(), m, func(e kv.Entry) error { entries[e.Key] = len(e.Value); return nil }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(entries, map[string]int{"a": 1, "b": kv.MaxValue, "c": kv.MaxValue, "d": kv.MaxValue, "e": 0}) || len(m.Control) != 2 {
		t.Errorf("%v in %d files", entries, len(m.Control))
	}
	if _, err := s.Read(t.Context(), "none"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("a backup that is not there: %v", err)
	}
}

// TestLatest chooses by time and store.
func TestLatest(t *testing.T) {
	s := newSite(t)
	old := s.create(t, "A")
	other := s.create(t, "B")
	if err := s.store.Put(t.Context(), listRoot+"99999999-damaged", []byte("SCBK")); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		store string
		until int64
		want  string
	}{
		"any": {"", 0, other.Name}, "of A": {"A", 0, old.Name}, "until": {"", other.Manifest.Created - 1, old.Name}, "too early": {"", 5, ""}, "of C": {"C", 0, ""},
	} {
		found, skipped, err := s.Latest(t.Context(), test.store, test.until)
		if found.Name != test.want || (test.want == "") != errors.Is(err, blob.ErrNotFound) || len(skipped) != 1 {
			t.Errorf("%s: %s, skipped %d, %v; want %s", name, found.Name, len(skipped), err, test.want)
		}
	}
}

// TestDamage: whatever is changed or missing is found, and named.
func TestDamage(t *testing.T) {
	s := newSite(t)
	info := s.create(t, "A")
	for _, key := range append(s.keys(t, fileRoot), s.keys(t, listRoot)...) {
		for _, what := range []string{"missing", "short", "flipped"} {
			stored := readObject(t, s.store, key)
			changed := bytes.Clone(stored)
			switch {
			case what == "missing":
				if strings.HasPrefix(key, listRoot) {
					continue
				}
			case len(stored) == 0:
				continue
			case what == "short":
				changed = changed[:len(changed)-1]
			default:
				changed[len(changed)/2] ^= 1
			}
			if err := s.store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if what != "missing" {
				putObject(t, s.store, key, changed)
			}
			if _, err := s.Verify(t.Context(), info.Name); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s is %s: %v", key, what, err)
			}
			if err := s.store.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			putObject(t, s.store, key, stored)
		}
	}
	if _, err := s.Verify(t.Context(), info.Name); err != nil {
		t.Errorf("repaired: %v", err)
	}
}

func readObject(t *testing.T, s blob.Store, key string) []byte {
	t.Helper()
	info, err := s.Stat(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size)
	if err := s.ReadAt(t.Context(), key, b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func putObject(t *testing.T, s blob.Store, key string, b []byte) {
	t.Helper()
	if err := s.Put(t.Context(), key, b); err != nil {
		t.Fatal(err)
	}
}

// TestDelete: files go with the last backup that needs them, when they are a day old, and nobody's else.
func TestDelete(t *testing.T) {
	s := newSite(t)
	first := s.create(t, "A")
	s.write(t, "logs/000004.sst", "table three")
	second := s.create(t, "A")
	third := s.create(t, "B")
	before := len(s.keys(t, fileRoot))
	if err := s.Delete(t.Context(), second.Name, "none"); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("one of the names is wrong: %v", err)
	}
	if err := s.Delete(t.Context(), second.Name); err != nil {
		t.Fatal(err)
	}
	if n := len(s.keys(t, fileRoot)); n != before || len(s.keys(t, listRoot)) != 2 {
		t.Errorf("%d files of %d are left, lists %v", n, before, s.keys(t, listRoot))
	}
	if err := s.Delete(t.Context(), third.Name); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(fileAge + time.Hour)
	s.create(t, "B")
	deleted, err := s.Prune(t.Context(), "B", 1)
	if err != nil || deleted != nil {
		t.Errorf("pruned %v, %v", deleted, err)
	}
	if err := s.fs.Remove("logs/000004.sst"); err != nil {
		t.Fatal(err)
	}
	s.create(t, "B")
	if deleted, err = s.Prune(t.Context(), "B", 1); err != nil || len(deleted) != 1 {
		t.Errorf("pruned %v, %v", deleted, err)
	}
	if n := len(s.keys(t, fileRoot)); n != before-1 {
		t.Errorf("%d files of %d are left", n, before)
	}
	for _, name := range []string{first.Name} {
		if _, err := s.Verify(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUses: backups and deletions keep out of each other's way, and what was left of one that was killed does not last.
func TestUses(t *testing.T) {
	s := newSite(t)
	info := s.create(t, "A")
	putObject(t, s.store, useRoot+"create-other", nil)
	if err := s.Delete(t.Context(), info.Name); !errors.Is(err, ErrBusy) || len(s.keys(t, listRoot)) != 1 {
		t.Errorf("a deletion beside a backup: %v", err)
	}
	s.create(t, "A") // two backups at a time share the store
	putObject(t, s.store, useRoot+"delete-other", nil)
	if _, err := s.Create(t.Context(), Manifest{}, "logs", "control"); !errors.Is(err, ErrBusy) || len(s.keys(t, listRoot)) != 2 {
		t.Errorf("a backup beside a deletion: %v", err)
	}
	if uses := s.keys(t, useRoot); len(uses) != 2 {
		t.Errorf("uses %v", uses)
	}
	s.now = s.now.Add(useLimits[useCreate] + time.Hour)
	if err := s.Delete(t.Context(), info.Name); err != nil {
		t.Error(err)
	}
	s.create(t, "A")
	if uses := s.keys(t, useRoot); len(uses) != 0 {
		t.Errorf("uses %v", uses)
	}
}

var errCut = errors.New("cut off here")

// cutStore ends after a number of changes.
type cutStore struct {
	blob.Store

	left int
}

func (s *cutStore) take() error {
	if s.left--; s.left < 0 {
		return errCut
	}
	return nil
}

// Put implements blob.Store.
func (s *cutStore) Put(ctx context.Context, key string, parts ...[]byte) error {
	if err := s.take(); err != nil {
		return err
	}
	return s.Store.Put(ctx, key, parts...)
}

// Delete implements blob.Store.
func (s *cutStore) Delete(ctx context.Context, key string) error {
	if err := s.take(); err != nil {
		return err
	}
	return s.Store.Delete(ctx, key)
}

// TestCutOff: a backup and a deletion that end anywhere leave backups that are whole or not there, and succeed when they are repeated.
func TestCutOff(t *testing.T) {
	for changes := 0; ; changes++ {
		s := newSite(t)
		first := s.create(t, "A")
		s.write(t, "logs/000004.sst", "table three", "logs/000005.sst", "table four")
		cut := &cutStore{Store: s.store, left: changes}
		_, err := New(cut, Options{FS: s.fs, Now: func() time.Time { return s.now }}).Create(t.Context(), Manifest{Store: "A"}, "logs", "control")
		if err != nil && !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		checkWhole(t, s)
		s.now = s.now.Add(25 * time.Hour) // who was killed is not waited for
		second := s.create(t, "A")
		cut.left = changes
		derr := New(cut, Options{Now: func() time.Time { return s.now }}).Delete(t.Context(), first.Name)
		if derr != nil && !errors.Is(derr, errCut) {
			t.Fatal(derr)
		}
		checkWhole(t, s)
		s.now = s.now.Add(2 * time.Hour)
		if _, err := s.Prune(t.Context(), "A", 1); err != nil {
			t.Fatal(err)
		}
		if lists := s.keys(t, listRoot); len(lists) != 1 || lists[0] != listRoot+second.Name {
			t.Errorf("after %d changes and all again: %v", changes, lists)
		}
		if err == nil && derr == nil {
			if changes < 4 {
				t.Errorf("only %d changes", changes)
			}
			return
		}
	}
}

func checkWhole(t *testing.T, s *site) {
	t.Helper()
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if _, err := s.Verify(t.Context(), i.Name); err != nil {
			t.Error(err)
		}
	}
}

// An interrupted fetch leaves a file that is not whole: the next one replaces it.
func TestFetchAgain(t *testing.T) {
	s := newSite(t)
	m := s.create(t, "A").Manifest
	s.write(t, "fetched/000001.sst", "table on", "fetched/000002.sst", "table txo")
	if err := s.Fetch(t.Context(), m.Logs, "fetched"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"000001.sst": "table one", "000002.sst": "table two", "MANIFEST-000003": ""} {
		f, err := s.fs.Open("fetched/" + name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", name, got, err)
		}
	}
}

// appendSum appends the checksum of all before it.
func appendSum(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func golden() *Manifest {
	return &Manifest{
		Created: 1_790_000_000_000_000, Watermark: 1_790_000_000_000_001, Revision: 77, Store: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Program: "v1.2.3",
		Logs:    []File{{Name: "000004.sst", Size: 300, CRC: 0x01020304, ID: [16]byte{1, 2, 3}}, {Name: "MANIFEST-000001", Size: 1, CRC: 9}},
		Control: []File{{Name: "control-00000001", Size: 4 << 20, CRC: 5, ID: [16]byte{15: 9}}},
	}
}

// TestGolden: what version 1 is does not change.
func TestGolden(t *testing.T) {
	entries := AppendEntry(AppendEntry(nil, kv.Entry{Key: "category/a", Value: []byte("value"), Revision: 258}), kv.Entry{Key: "x"})
	for name, got := range map[string][]byte{"list": AppendManifest(nil, golden()), "entries": entries} {
		path := "testdata/golden/v1/" + name + ".hex"
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v; it would be\n%s", err, hex.EncodeToString(got))
		}
		if want, err := hex.DecodeString(strings.TrimSpace(string(text))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v\n%x, want\n%x", name, err, got, want)
		}
	}
	m, err := DecodeManifest(AppendManifest(nil, golden()))
	if err != nil || !reflect.DeepEqual(m, golden()) {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestVersion: a list of a newer version is refused as such, also if this program could not read the rest.
func TestVersion(t *testing.T) {
	newer := append([]byte(magic), Version+1, 'x')
	newer = appendSum(newer)
	if _, err := DecodeManifest(newer); !errors.Is(err, ErrVersion) {
		t.Errorf("%v", err)
	}
	newer[5] = 'y'
	if _, err := DecodeManifest(newer); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged: %v", err)
	}
}

// TestFlips: no flipped bit of a list passes.
func TestFlips(t *testing.T) {
	b := AppendManifest(nil, golden())
	for i := range 8 * len(b) {
		flipped := bytes.Clone(b)
		flipped[i/8] ^= 1 << (i % 8)
		if _, err := DecodeManifest(flipped); !errors.Is(err, ErrDamaged) {
			t.Errorf("bit %d: %v", i, err)
		}
	}
	for i := range b {
		if _, err := DecodeManifest(b[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
}

// TestEntries: entries come back as they were.
func TestEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []kv.Entry
		var b []byte
		for range rapid.IntRange(0, 20).Draw(t, "entries") {
			e := kv.Entry{
				Key: rapid.StringN(1, 100, kv.MaxKey).Draw(t, "key"), Value: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "value"), Revision: rapid.Uint64().Draw(t, "revision"),
			}
			want = append(want, e)
			b = AppendEntry(b, e)
		}
		var got []kv.Entry
		err := DecodeEntries(b, func(e kv.Entry) error { got = append(got, e); return nil })
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d entries of %d, %v", len(got), len(want), err)
		}
		for i := range want {
			if got[i].Key != want[i].Key || got[i].Revision != want[i].Revision || !bytes.Equal(got[i].Value, want[i].Value) {
				t.Fatalf("%+v, want %+v", got[i], want[i])
			}
		}
		if len(b) > 0 {
			if err := DecodeEntries(b[:len(b)-1], func(kv.Entry) error { return nil }); !errors.Is(err, ErrDamaged) {
				t.Fatalf("cut off: %v", err)
			}
		}
	})
}

func FuzzDecodeManifest(f *testing.F) {
	f.Add(AppendManifest(nil, golden()))
	f.Add(appendSum(append([]byte(magic), Version)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Error(err)
			}
			return
		}
		again, err := DecodeManifest(AppendManifest(nil, m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}

func FuzzDecodeEntries(f *testing.F) {
	f.Add(AppendEntry(nil, kv.Entry{Key: "a", Value: []byte("b"), Revision: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := DecodeEntries(b, func(e kv.Entry) error {
			if len(e.Key) == 0 || len(e.Key) > kv.MaxKey || len(e.Value) > kv.MaxValue {
				t.Errorf("an entry of %d and %d bytes", len(e.Key), len(e.Value))
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Error(err)
		}
	})
}
