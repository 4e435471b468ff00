package keyring

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
)

var rewriteGolden = flag.Bool("rewrite-golden", false, "write the golden files of the current version")

const testDir = "/spool/keys"

// openRing opens the folder, and begins a run.
func openRing(tb testing.TB, fs vfs.FS, w encryption.Wrapper, from uint64) *Keyring {
	tb.Helper()
	k, err := Open(Config{Dir: testDir, FS: fs, Wrapper: w})
	if err != nil {
		tb.Fatal(err)
	}
	k.BeginRun(from)
	return k
}

func encrypt(tb testing.TB, k *Keyring, category, plain, bound string) []byte {
	tb.Helper()
	key, err := k.WritingKey(category)
	if err != nil {
		tb.Fatal(err)
	}
	return key.AppendEncrypted(nil, []byte(plain), []byte(bound))
}

// decrypt leaves the bytes as they are.
func decrypt(k *Keyring, category string, stored []byte, bound string) (string, error) {
	plain, err := k.Decrypt(category, slices.Clone(stored), []byte(bound))
	return string(plain), err
}

func TestRoundTrip(t *testing.T) {
	mem := vfs.NewCrashableMem()
	file := encryptiontest.KeyFile(t, "k1")
	k := openRing(t, mem, file, 1)
	stored := encrypt(t, k, "payments", "GET / HTTP/1.1", "place")
	if len(stored) != len("GET / HTTP/1.1")+Overhead || bytes.Contains(stored, []byte("GET")) {
		t.Fatalf("stored %q", stored)
	}
	if again := encrypt(t, k, "payments", "GET / HTTP/1.1", "place"); bytes.Equal(again[idLen:], stored[idLen:]) || !bytes.Equal(again[:idLen], stored[:idLen]) {
		t.Error("the second time it has the same nonce, or another key")
	}
	encrypt(t, k, "other", "x", "place")
	// The key is durable before anything is encrypted with it.
	crashed := openRing(t, mem.CrashClone(vfs.CrashCloneCfg{}), file, 2)
	for name, k := range map[string]*Keyring{"the same process": k, "after a crash": crashed} {
		if got, err := decrypt(k, "payments", stored, "place"); err != nil || got != "GET / HTTP/1.1" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got, err := decrypt(k, "payments", stored, "another place"); !errors.Is(err, ErrNotAuthentic) {
			t.Errorf("%s, elsewhere: %q, %v", name, got, err)
		}
		if got, err := decrypt(k, "other", stored, "place"); !errors.Is(err, ErrNotAuthentic) {
			t.Errorf("%s, of another category: %q, %v", name, got, err)
		}
		for i := range stored {
			changed := slices.Clone(stored)
			changed[i] ^= 1
			want := ErrNotAuthentic
			if i < idLen {
				want = ErrNoKey
			}
			if got, err := decrypt(k, "payments", changed, "place"); !errors.Is(err, want) {
				t.Fatalf("%s, byte %d changed: %q, %v", name, i, got, err)
			}
			if got, err := decrypt(k, "payments", stored[:i], "place"); !errors.Is(err, ErrNotAuthentic) {
				t.Fatalf("%s, cut to %d bytes: %q, %v", name, i, got, err)
			}
		}
	}
	// In another process the category has another key.
	if next := encrypt(t, crashed, "payments", "x", "place"); bytes.Equal(next[:idLen], stored[:idLen]) {
		t.Error("two processes write with one key")
	}
}

// TestWrappers: what can't be unwrapped is told with the names of both keys, and nothing can be written without a wrapper.
func TestWrappers(t *testing.T) {
	mem := vfs.NewMem()
	stored := encrypt(t, openRing(t, mem, encryptiontest.KeyFile(t, "k1"), 1), "payments", "x", "")
	for want, w := range map[string]encryption.Wrapper{
		"--encryption-key-file":        nil,
		"has no key k1":                encryptiontest.KeyFile(t, "k2"),
		"was not wrapped with the key": encryptiontest.KeyFile(t, "k1"),
	} {
		k := openRing(t, mem, w, 2)
		_, err := decrypt(k, "payments", stored, "")
		if !errors.Is(err, encryption.ErrWrapped) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "category payments, wrapped with k1") {
			t.Errorf("%v, want %q", err, want)
		}
		all, none := func(Stored) bool { return true }, func(Stored) bool { return false }
		if err := k.Check(all); !errors.Is(err, encryption.ErrWrapped) {
			t.Errorf("check: %v", err)
		}
		if err := k.Check(none); err != nil {
			t.Errorf("nothing needs the key: %v", err)
		}
		if k.Encrypts() != (w != nil) {
			t.Errorf("encrypts: %v", k.Encrypts())
		}
	}
	if _, err := openRing(t, mem, nil, 2).WritingKey("payments"); !errors.Is(err, encryption.ErrWrapped) {
		t.Errorf("a key for writing without a wrapper: %v", err)
	}
}

// TestPrune: keys go with the last thing that they may have encrypted, and those that are there are of the runs that they should be.
func TestPrune(t *testing.T) {
	mem := vfs.NewMem()
	file := encryptiontest.KeyFile(t, "k1")
	var stored [][]byte
	for _, from := range []uint64{1, 4, 9} {
		k := openRing(t, mem, file, from)
		stored = append(stored, encrypt(t, k, "a", "x", ""))
		encrypt(t, k, "b", "x", "")
	}
	half, err := mem.Create(testDir+"/"+fileName(9, 7)+".tmp", vfs.WriteCategoryUnspecified)
	if err := errors.Join(err, half.Close()); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		number uint64 // the only thing that is left
		want   []uint64
	}{
		{3, []uint64{1, 1}}, {0, nil},
	} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll(testDir, 0o700); err != nil {
			t.Fatal(err)
		}
		copyKeys(t, mem, fs)
		k := openRing(t, fs, file, 20)
		if err := k.Prune(func(from, to uint64) bool { return from <= step.number && step.number < to }); err != nil {
			t.Fatal(err)
		}
		var left []uint64
		for _, s := range k.List() {
			left = append(left, s.From)
		}
		if !slices.Equal(left, step.want) || k.Count() != len(step.want) {
			t.Errorf("with %d: keys of the runs %v are left, want %v", step.number, left, step.want)
		}
		names, err := fs.List(testDir)
		if err != nil || len(names) != len(step.want) {
			t.Errorf("with %d: files %q, %v", step.number, names, err)
		}
		if _, err := decrypt(openRing(t, fs, file, 20), "a", stored[0], ""); errors.Is(err, ErrNoKey) != (step.want == nil) {
			t.Errorf("with %d: %v", step.number, err)
		}
	}
	for i, s := range openRing(t, mem, file, 20).List() {
		if want := [][2]uint64{{1, 4}, {4, 9}, {9, 1<<64 - 1}}[i/2]; s.From != want[0] || s.To != want[1] || s.Category != []string{"a", "b"}[i%2] || s.Wrapper != "k1" {
			t.Errorf("key %d is %+v, want %v", i, s, want)
		}
	}
	// A folder that is not there has nothing to remove.
	if err := openRing(t, vfs.NewMem(), nil, 1).Prune(func(_, _ uint64) bool { return false }); err != nil {
		t.Error(err)
	}
}

// copyKeys copies the files of the folder.
func copyKeys(tb testing.TB, from *vfs.MemFS, to vfs.FS) {
	tb.Helper()
	names, err := from.List(testDir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		content, err := from.UnsafeGetFileDataBuffer(testDir + "/" + name)
		if err != nil {
			tb.Fatal(err)
		}
		writeFile(tb, to, name, content)
	}
}

func writeFile(tb testing.TB, fs vfs.FS, name string, content []byte) {
	tb.Helper()
	f, err := fs.Create(testDir+"/"+name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(content)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		tb.Fatal(err)
	}
}

// TestDelete: what a deleted key encrypted can't be read any more, and is known for that; nothing is left of the key in its file.
func TestDelete(t *testing.T) {
	mem := vfs.NewMem()
	file := encryptiontest.KeyFile(t, "k1")
	k := openRing(t, mem, file, 1)
	a, b := encrypt(t, k, "a", "x", ""), encrypt(t, k, "b", "y", "")
	encrypt(t, openRing(t, mem, file, 2), "a", "x", "")
	for _, want := range []int{2, 0} {
		if n, err := Delete(mem, testDir, "a"); n != want || err != nil {
			t.Errorf("%d keys were deleted, want %d, %v", n, want, err)
		}
	}
	k = openRing(t, mem, file, 3)
	if got, err := decrypt(k, "a", a, ""); !errors.Is(err, ErrDeleted) || !strings.Contains(err.Error(), "category a") {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := decrypt(k, "b", b, ""); err != nil || got != "y" {
		t.Errorf("%q, %v", got, err)
	}
	for _, s := range k.List() {
		if s.Deleted != (s.Category == "a") || s.Err != nil {
			t.Errorf("%+v", s)
		}
	}
	if err := k.Check(func(Stored) bool { return true }); err != nil {
		t.Errorf("a deleted key is in the way: %v", err)
	}
	encrypt(t, k, "a", "z", "") // with a new one
	if n, err := Delete(vfs.NewMem(), testDir, "a"); n != 0 || err != nil {
		t.Errorf("without a folder: %d, %v", n, err)
	}
}

// TestUses: a key is not used more often than its random nonces are good for.
func TestUses(t *testing.T) {
	k := openRing(t, vfs.NewMem(), encryptiontest.KeyFile(t, "k1"), 1)
	first, err := k.WritingKey("a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := k.WritingKey("a"); err != nil || again != first {
		t.Errorf("another key at the second call, %v", err)
	}
	first.uses.Store(maxUses)
	if again, err := k.WritingKey("a"); err != nil || again == first {
		t.Errorf("the same key after %d uses, %v", int64(maxUses), err)
	}
}

// TestOneKey: calls at the same time make one key for a category.
func TestOneKey(t *testing.T) {
	k := openRing(t, vfs.NewMem(), encryptiontest.KeyFile(t, "k1"), 1)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			category := []string{"a", "b"}[i%2]
			key, err := k.WritingKey(category)
			if err != nil {
				t.Error(err)
				return
			}
			stored := key.AppendEncrypted(nil, []byte("x"), nil)
			if got, err := decrypt(k, category, stored, ""); err != nil || got != "x" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := k.Count(); n != 2 {
		t.Errorf("%d keys, want 2", n)
	}
}

// sampleEntries are those of the golden files.
func sampleEntries() map[string]*keyEntry {
	e := &keyEntry{stored: Stored{From: 7, ID: 0x1234, Category: "web/ä logs", Wrapper: "2026-11"}, wrapped: bytes.Repeat([]byte{0xab}, 60)}
	d := &keyEntry{stored: Stored{From: 7, ID: 0x1235, Category: "payments", Deleted: true}}
	e.stored.File, d.stored.File = fileName(7, 0x1234), fileName(7, 0x1235)
	return map[string]*keyEntry{"key": e, "deleted": d}
}

func sameEntry(a, b *keyEntry) bool { return a.stored == b.stored && bytes.Equal(a.wrapped, b.wrapped) }

func TestGolden(t *testing.T) {
	for name, e := range sampleEntries() {
		path := filepath.Join("testdata", "golden", "v1", name)
		if *rewriteGolden {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, e.encode(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.encode(), b) {
			t.Errorf("%s is written differently now: %s", name, e.encode())
		}
		if got, err := decodeFile(b); err != nil || !sameEntry(got, e) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for i := range b {
			for _, bits := range []byte{1, 2, 0x20} {
				changed := slices.Clone(b)
				changed[i] ^= bits
				if got, err := decodeFile(changed); !errors.Is(err, errKeyFile) {
					t.Fatalf("%s, byte %d changed: %+v, %v", name, i, got, err)
				}
			}
		}
	}
}

// TestStrangeFiles: a file that is not a key's does not matter, one that is damaged is told and kept, and one of another name is not taken for it.
func TestStrangeFiles(t *testing.T) {
	mem := vfs.NewMem()
	file := encryptiontest.KeyFile(t, "k1")
	k := openRing(t, mem, file, 1)
	stored := encrypt(t, k, "a", "x", "")
	good := k.List()[0]
	content, err := mem.UnsafeGetFileDataBuffer(testDir + "/" + good.File)
	if err != nil {
		t.Fatal(err)
	}
	content = slices.Clone(content)
	writeFile(t, mem, "README", []byte("x"))
	writeFile(t, mem, fileName(1, good.ID)[1:], content)
	if n := openRing(t, mem, file, 2).Count(); n != 1 {
		t.Errorf("%d keys", n)
	}
	writeFile(t, mem, fileName(1, 99), content)
	writeFile(t, mem, good.File, bytes.Repeat([]byte("x"), maxFile+1))
	k = openRing(t, mem, file, 2)
	for _, s := range k.List() {
		if !errors.Is(s.Err, errKeyFile) || s.From != 1 || s.ID != 99 && s.ID != good.ID {
			t.Errorf("%+v", s)
		}
	}
	if _, err := decrypt(k, "a", stored, ""); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), good.File) {
		t.Errorf("%v", err)
	}
	if n, err := Delete(mem, testDir, "a"); n != 0 || err != nil {
		t.Errorf("deleted %d, %v", n, err)
	}
}

// FuzzDecodeFile takes any bytes; what it takes it writes again as it was.
//
//	go test ./scribed/keyring -run '^$' -fuzz FuzzDecodeFile -fuzztime 10s
func FuzzDecodeFile(f *testing.F) {
	for _, e := range sampleEntries() {
		f.Add(e.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeFile(b)
		if err == nil && !bytes.Equal(e.encode(), b) {
			t.Errorf("%q is written as %q", b, e.encode())
		}
	})
}

// FuzzDecrypt takes any bytes; it accepts only what was encrypted.
func FuzzDecrypt(f *testing.F) {
	k := openRing(f, vfs.NewMem(), encryptiontest.KeyFile(f, "k1"), 1)
	good := encrypt(f, k, "a", "x", "place")
	f.Add(good, "place")
	f.Add(good[:Overhead], "")
	f.Fuzz(func(t *testing.T, stored []byte, bound string) {
		got, err := decrypt(k, "a", stored, bound)
		if (err == nil) != (bytes.Equal(stored, good) && bound == "place") {
			t.Fatalf("%q, %v", got, err)
		}
	})
}
