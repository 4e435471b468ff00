package encryption_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

// world is a store, and a clock that stands still.
type world struct {
	store  blob.Store
	passed atomic.Int64 // nanoseconds
}

func newWorld() *world { return &world{store: memory.New()} }

func (w *world) now() time.Time { return time.Unix(1_700_000_000, w.passed.Load()) }

func (w *world) pass(d time.Duration) { w.passed.Add(int64(d)) }

// keys is those of a process.
func (w *world) keys(t testing.TB, wrapper encryption.Wrapper) *encryption.Keys {
	t.Helper()
	k, err := encryption.NewKeys(encryption.Config{Store: w.store, Wrapper: wrapper, Clock: w.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// writing waits for a key for writing.
func writing(t testing.TB, k *encryption.Keys, category, generation uint32) *encryption.Key {
	t.Helper()
	key, err := tryWriting(k, category, generation)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func tryWriting(k *encryption.Keys, category, generation uint32) (*encryption.Key, error) {
	for {
		key, err := k.WritingKey(category, generation)
		if !errors.Is(err, encryption.ErrLoading) {
			return key, err
		}
		<-time.After(time.Millisecond)
	}
}

// onlyObject returns the only object with a prefix, and its content.
func onlyObject(t testing.TB, s blob.Store, prefix string) (key, content string) {
	t.Helper()
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil || key != "" {
			t.Fatal(info.Key, key, err)
		}
		key = info.Key
	}
	return key, object(t, s, key)
}

func TestRoundTrip(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	key := writing(t, w.keys(t, file), 7, 1)
	reader := w.keys(t, file)
	for _, codec := range []pointer.Codec{pointer.CodecNone, pointer.CodecZstd} {
		plain := []byte("GET / HTTP/1.1")
		stored := key.AppendBlock([]byte("before"), codec, plain, 99)[len("before"):]
		if len(stored) != len(plain)+pointer.EncryptionOverhead || bytes.Contains(stored, plain[:4]) {
			t.Fatalf("stored %q", stored)
		}
		if again := key.AppendBlock(nil, codec, plain, 99); bytes.Equal(again, stored) {
			t.Error("two blocks have one nonce")
		}
		got, err := reader.DecryptBlock(t.Context(), codec.Encrypted(), stored, 99)
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%q, %v", got, err)
		}
		if _, err := reader.DecryptBlock(t.Context(), codec.Encrypted(), stored, 98); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("with another length: %v", err)
		}
		other := pointer.CodecNone + pointer.CodecZstd - codec
		if _, err := reader.DecryptBlock(t.Context(), other.Encrypted(), stored, 99); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("as %s: %v", other, err)
		}
		// No byte can be changed, and nothing be cut off.
		for i := range stored {
			changed := slices.Clone(stored)
			changed[i] ^= 1
			if got, err := reader.DecryptBlock(t.Context(), codec.Encrypted(), changed, 99); err == nil {
				t.Fatalf("byte %d changed: %q", i, got)
			}
			if got, err := reader.DecryptBlock(t.Context(), codec.Encrypted(), stored[:i], 99); err == nil {
				t.Fatalf("cut to %d bytes: %q", i, got)
			}
		}
	}
}

// TestOneKey: processes that begin at the same time read each other's blocks, and each category and generation has its own key.
func TestOneKey(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	var blocks [][]byte
	for range 8 {
		blocks = append(blocks, writing(t, w.keys(t, file), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1))
	}
	one := w.keys(t, file)
	for i, b := range blocks {
		if got, err := one.DecryptBlock(t.Context(), pointer.CodecEncrypted, b, 1); err != nil || string(got) != "x" {
			t.Errorf("process %d: %q, %v", i, got, err)
		}
	}
	// A block of one category is not one of another, whatever its header says.
	for _, other := range [][2]uint32{{8, 1}, {7, 2}} {
		writing(t, one, other[0], other[1])
		b := slices.Clone(blocks[0])
		b[4], b[8] = byte(other[0]), byte(other[1])
		if _, err := one.DecryptBlock(t.Context(), pointer.CodecEncrypted, b, 1); err == nil {
			t.Errorf("the block was decrypted with the key of %v", other)
		}
	}
}

// TestSwappedObjects: the object of one category's key can't be given to another.
func TestSwappedObjects(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	writing(t, w.keys(t, file), 7, 1)
	key, content := onlyObject(t, w.store, "keys/7/1.")
	block := writing(t, w.keys(t, file), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	block[4] = 8
	for name, text := range map[string]string{
		"copied":    content,
		"rewritten": strings.Replace(content, "scribe-key 1 7 1", "scribe-key 1 8 1", 1),
	} {
		other := newWorld()
		if err := other.store.Put(t.Context(), strings.Replace(key, "keys/7/", "keys/8/", 1), []byte(text)); err != nil {
			t.Fatal(err)
		}
		_, err := other.keys(t, file).DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1)
		if !errors.Is(err, encryption.ErrObject) && !errors.Is(err, encryption.ErrWrapped) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func object(t testing.TB, s blob.Store, key string) string {
	t.Helper()
	info, err := s.Stat(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size)
	if err := s.ReadAt(t.Context(), key, b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWrongKeys: without the right key file nothing is written and nothing is read, and the error says why.
func TestWrongKeys(t *testing.T) {
	w := newWorld()
	right := encryptiontest.KeyFile(t, "k1")
	block := writing(t, w.keys(t, right), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	for want, wrapper := range map[string]encryption.Wrapper{
		"--encryption-key-file":        nil,
		"has no key k1":                encryptiontest.KeyFile(t, "k2"),
		"was not wrapped with the key": encryptiontest.KeyFile(t, "k1"),
		"open the key file":            encryption.KeyFile{Path: filepath.Join(t.TempDir(), "nothing")},
	} {
		k := w.keys(t, wrapper)
		_, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1)
		if !errors.Is(err, encryption.ErrWrapped) || !strings.Contains(err.Error(), want) {
			t.Errorf("read: %v, want %q", err, want)
		}
		if _, err := tryWriting(k, 7, 1); !errors.Is(err, encryption.ErrWrapped) {
			t.Errorf("write: %v", err)
		}
	}
	// The file may be mended while the process runs.
	path := encryptiontest.KeyFile(t, "k2").Path
	k := w.keys(t, encryption.KeyFile{Path: path})
	if _, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); !errors.Is(err, encryption.ErrWrapped) {
		t.Fatal(err)
	}
	if err := os.Rename(right.Path, path); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Second)
	if got, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestKeyFileErrors(t *testing.T) {
	good, err := encryption.NewFileKey("k1", nil)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(strings.TrimPrefix(good, "k1 "))
	many := ""
	for i := range 101 {
		line, err := encryption.NewFileKey(fmt.Sprint("k", i), nil)
		if err != nil {
			t.Fatal(err)
		}
		many += line
	}
	for text, want := range map[string]string{
		"":                              "it has no key",
		"# " + good:                     "it has no key",
		good + good:                     "line 2: there are two keys of the name k1",
		"k1 AAAA\n":                     "line 1: want the name of a key",
		secret + "\n":                   "line 1: want the name of a key",
		"k\x01 " + secret:               "line 1: invalid name",
		many:                            "line 101: more than 100 keys",
		strings.Repeat("#\n", 32<<10+1): "more than 65536 bytes",
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := encryption.KeyFile{Path: path}.Check()
		if !errors.Is(err, encryption.ErrWrapped) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error tells the key: %v", err)
		}
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o440: "", 0o644: "(mode 0644)", 0o602: "(mode 0602)"} {
		file := encryptiontest.KeyFile(t, "k1")
		if err := os.Chmod(file.Path, mode); err != nil {
			t.Fatal(err)
		}
		err := file.Check()
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, encryption.ErrWrapped) || !strings.Contains(err.Error(), want)) {
			t.Errorf("with mode %#o: %v", mode, err)
		}
	}
	for _, name := range []string{"", "#k", "a b", "ä", strings.Repeat("k", 201)} {
		if _, err := encryption.NewFileKey(name, nil); err == nil {
			t.Errorf("a key may have the name %q", name)
		}
	}
}

// TestDeleted: what a deleted key encrypted can't be read any more, soon also where the key was in memory; and a new key of its name is not
// taken for it.
func TestDeleted(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	k := w.keys(t, file)
	block := writing(t, k, 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	writing(t, k, 77, 1)
	if _, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := encryption.DeleteKeys(t.Context(), w.store, 7, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := w.keys(t, file).DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); !errors.Is(err, encryption.ErrNoKey) {
		t.Errorf("another process: %v", err)
	}
	if _, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil {
		t.Errorf("the key in memory: %v", err)
	}
	w.pass(time.Hour)
	var err error
	for err == nil { // the first call begins the question to the store
		_, err = k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1)
	}
	if !errors.Is(err, encryption.ErrNoKey) {
		t.Errorf("an hour later: %v", err)
	}
	writing(t, w.keys(t, file), 7, 1)
	if _, err := w.keys(t, file).DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); !errors.Is(err, encryption.ErrNoKey) || !strings.Contains(err.Error(), "is not in the store") {
		t.Errorf("with a new key of the name: %v", err)
	}
	if _, got := onlyObject(t, w.store, "keys/77/"); !strings.HasPrefix(got, "scribe-key 1 77 1 ") {
		t.Errorf("the key of another category is %q", got)
	}
}

// failing is a store that can be away.
type failing struct {
	blob.Store
	away atomic.Bool
}

func (f *failing) Stat(ctx context.Context, key string) (blob.Info, error) {
	if f.away.Load() {
		return blob.Info{}, blob.ErrUnavailable
	}
	return f.Store.Stat(ctx, key)
}

func (f *failing) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if f.away.Load() {
		return func(yield func(blob.Info, error) bool) { yield(blob.Info{}, blob.ErrUnavailable) }
	}
	return f.Store.List(ctx, prefix)
}

// TestReplaced: a process that had a deleted key for writing takes another one, and says so; what others write with it meanwhile is read at once.
func TestReplaced(t *testing.T) {
	w := newWorld()
	var log bytes.Buffer
	file := encryptiontest.KeyFile(t, "k1")
	k, err := encryption.NewKeys(encryption.Config{Store: w.store, Wrapper: file, Clock: w.now, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	old := writing(t, k, 7, 1)
	// Former generations go, the one that is written with does not.
	writing(t, k, 7, 2)
	if n, err := encryption.DeleteKeys(t.Context(), w.store, 7, true); n != 1 || err != nil {
		t.Error(n, err)
	}
	block := writing(t, w.keys(t, file), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	if got, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	w.pass(time.Hour)
	for key := old; key == old; key = writing(t, k, 7, 1) {
		<-time.After(time.Millisecond)
	}
	k.Close()
	if got := log.String(); strings.Count(got, "is gone from the store") != 1 || !strings.Contains(got, "category=7 generation=1") {
		t.Errorf("the log says %s", got)
	}
	if n, err := encryption.DeleteKeys(t.Context(), w.store, 7, false); n != 2 || err != nil {
		t.Error(n, err)
	}
}

// TestStoreAway: a key in memory is used on while the store does not answer; others are asked for again a second later.
func TestStoreAway(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	block := writing(t, w.keys(t, file), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	f := &failing{Store: w.store}
	w.store = f
	k := w.keys(t, file)
	if _, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil {
		t.Fatal(err)
	}
	other := w.keys(t, file)
	f.away.Store(true)
	w.pass(2 * time.Hour)
	for range 3 {
		if _, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil {
			t.Errorf("known: %v", err)
		}
		if _, err := other.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); !errors.Is(err, blob.ErrUnavailable) {
			t.Errorf("not known: %v", err)
		}
		w.pass(time.Second)
	}
	f.away.Store(false)
	w.pass(time.Second)
	if _, err := other.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestRewrap: all keys are wrapped with the new key and none with the old one, whatever was interrupted; and everything is read as before.
func TestRewrap(t *testing.T) {
	w := newWorld()
	path := encryptiontest.KeyFile(t, "k1").Path
	file := encryption.KeyFile{Path: path}
	k := w.keys(t, file)
	var blocks [][]byte
	for c := range uint32(3) {
		blocks = append(blocks, writing(t, k, c, 1).AppendBlock(nil, pointer.CodecNone, []byte{byte(c)}, 1))
	}
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	both := encryptiontest.KeyFile(t, "k2").Path
	line, err := os.ReadFile(both)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, slices.Concat(line, old), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now() // the store's clock
	if n, young, err := encryption.RewrapKeys(t.Context(), w.store, file, now); n != 0 || young != 3 || err != nil {
		t.Errorf("%d rewrapped, %d young, %v", n, young, err)
	}
	// It was interrupted after the first key: the others have a copy, and their old objects.
	if n, young, err := encryption.RewrapKeys(t.Context(), &fullStore{Store: w.store, deletes: 1}, file, now.Add(2*time.Hour)); n != 1 || young != 0 || err == nil {
		t.Errorf("interrupted: %d rewrapped, %d young, %v", n, young, err)
	}
	if n, young, err := encryption.RewrapKeys(t.Context(), w.store, file, now.Add(2*time.Hour)); n != 0 || young != 0 || err != nil {
		t.Errorf("%d rewrapped, %d young, %v", n, young, err)
	}
	count := 0
	for key, err := range encryption.ListKeys(t.Context(), w.store, encryption.Prefix) {
		if err != nil || key.Wrapper != "k2" {
			t.Errorf("%+v, %v", key, err)
		}
		count++
	}
	if count != 3 {
		t.Errorf("%d keys", count)
	}
	for info, err := range w.store.List(t.Context(), "keys/") {
		if err != nil || !strings.HasSuffix(info.Key, ".1") {
			t.Errorf("%s is left, %v", info.Key, err)
		}
	}
	alone := w.keys(t, encryption.KeyFile{Path: both}) // the old key is gone
	for c, b := range blocks {
		if got, err := alone.DecryptBlock(t.Context(), pointer.CodecEncrypted, b, 1); err != nil || got[0] != byte(c) {
			t.Errorf("category %d: %v, %v", c, got, err)
		}
	}
	if _, err := tryWriting(alone, 1, 1); err != nil {
		t.Errorf("writing on: %v", err)
	}
}

// fullStore refuses deletes after some.
type fullStore struct {
	blob.Store
	deletes int
}

func (f *fullStore) Delete(ctx context.Context, key string) error {
	if f.deletes == 0 {
		return blob.ErrUnavailable
	}
	f.deletes--
	return f.Store.Delete(ctx, key)
}

// TestDamagedObjects: an object that is not as it is written is refused, and never replaced by a new key.
func TestDamagedObjects(t *testing.T) {
	w := newWorld()
	file := encryptiontest.KeyFile(t, "k1")
	writing(t, w.keys(t, file), 7, 1)
	block := writing(t, w.keys(t, file), 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	key, content := onlyObject(t, w.store, "keys/7/")
	for i := range len(content) {
		changed := []byte(content)
		changed[i] ^= 2
		damaged := newWorld()
		if err := damaged.store.Put(t.Context(), key, changed); err != nil {
			t.Fatal(err)
		}
		k := damaged.keys(t, file)
		_, err := k.DecryptBlock(t.Context(), pointer.CodecEncrypted, block, 1)
		if !errors.Is(err, encryption.ErrObject) && !errors.Is(err, encryption.ErrWrapped) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := tryWriting(k, 7, 1); !errors.Is(err, encryption.ErrObject) && !errors.Is(err, encryption.ErrWrapped) {
			t.Fatalf("byte %d changed: a key for writing, %v", i, err)
		}
	}
}

func FuzzDecryptBlock(f *testing.F) {
	w := newWorld()
	line, err := encryption.NewFileKey("k1", entropy.NewSeeded(1, "file"))
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(f.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		f.Fatal(err)
	}
	k := w.keys(f, encryption.KeyFile{Path: path})
	good := writing(f, k, 7, 1).AppendBlock(nil, pointer.CodecNone, []byte("x"), 1)
	f.Add(good, 1)
	f.Add(good[:pointer.EncryptionOverhead], 0)
	f.Fuzz(func(t *testing.T, stored []byte, rawLen int) {
		got, err := k.DecryptBlock(context.Background(), pointer.CodecEncrypted, stored, rawLen)
		if (err == nil) != (bytes.Equal(stored, good) && rawLen == 1) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}
