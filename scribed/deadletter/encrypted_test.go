package deadletter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	"scribe/scribed/keyring"
	"scribe/storage/blob/encryption"
)

var rewriteGolden = flag.Bool("rewrite-golden", false, "write the golden files of the current version")

// wrapper stands for a key file or a service with a key of its name.
type wrapper string

func (w wrapper) Current(context.Context) (string, error) { return string(w), nil }

func (w wrapper) Wrap(_ context.Context, key []byte, label string) (string, []byte, error) {
	return string(w), slices.Concat([]byte(label), key), nil
}

func (w wrapper) Unwrap(_ context.Context, name string, wrapped []byte, label string) ([]byte, error) {
	key, ok := bytes.CutPrefix(wrapped, []byte(label))
	if !ok || name != string(w) {
		return nil, encryption.ErrWrapped
	}
	return key, nil
}

func openKeys(tb testing.TB, fs vfs.FS, dir string, w encryption.Wrapper) *keyring.Keyring {
	tb.Helper()
	k, err := keyring.Open(keyring.Config{Dir: dir, FS: fs, Wrapper: w, Random: entropy.NewSeeded(1, "keys")})
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// TestEncrypted: with the keys letters are as they were; without, all but message and frame is. A change of anything is found, also with a right
// checksum.
func TestEncrypted(t *testing.T) {
	mem := vfs.NewMem()
	keys := openKeys(t, mem, "/keys", wrapper("k1"))
	want := []Letter{letter(1), letter(2)}
	whole, err := Encode(want, keys)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(whole, want[0].Frame[:20]) || bytes.Contains(whole, []byte(want[0].Message)) {
		t.Error("the frame or the message is in the file as it was")
	}
	if got, err := Decode(slices.Clone(whole), openKeys(t, mem, "/keys", wrapper("k1"))); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for cause, keys := range map[error]*keyring.Keyring{keyring.ErrNoKey: nil, encryption.ErrWrapped: openKeys(t, mem, "/keys", nil)} {
		got, err := Decode(slices.Clone(whole), keys)
		if err != nil || len(got) != 2 {
			t.Fatalf("%d letters, %v", len(got), err)
		}
		for i, l := range got {
			if !errors.Is(l.Unread, cause) || l.Frame != nil || l.Message != "" || l.Category != want[i].Category || l.Reason != want[i].Reason || !l.Time.Equal(want[i].Time) {
				t.Errorf("%+v, want it without message and frame because of %v", l, cause)
			}
		}
	}
	first := binary.LittleEndian.Uint32(whole[fileLen+4:])
	for at := fileLen + 8; at < fileLen+int(first); at++ {
		b := slices.Clone(whole)
		b[at] ^= 1
		if _, err := Decode(slices.Clone(b), keys); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
		letter := b[fileLen : fileLen+int(first)]
		binary.LittleEndian.PutUint32(letter, record.CRC(letter[4:]))
		got, err := Decode(b, keys)
		// Another key, or one of another category, is not there.
		if err == nil && (len(got) == 0 || !errors.Is(got[0].Unread, keyring.ErrNoKey)) || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d changed, with its checksum: %+v, %v", at, got, err)
		}
	}
}

// TestEncryptedGolden reads a file and its keys of the version that is written with encryption.
func TestEncryptedGolden(t *testing.T) {
	dir := filepath.Join("testdata", "golden", "v2")
	want := []Letter{letter(1), letter(2)}
	if *rewriteGolden {
		keys := openKeys(t, nil, filepath.Join(dir, "keys"), wrapper("k1"))
		keys.BeginRun(7)
		b, err := Encode(want, keys)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "two.hex"), []byte(hex.EncodeToString(b)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Decode(readHex(t, filepath.Join(dir, "two.hex")), openKeys(t, nil, filepath.Join(dir, "keys"), wrapper("k1")))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestEncryptedFolder: nothing of a letter is in the folder as it was; keys stay as long as files that need them; and letters of before are not in the
// way when encryption is turned on or off.
func TestEncryptedFolder(t *testing.T) {
	mem := vfs.NewMem()
	cfg := DefaultConfig()
	cfg.Dir, cfg.MaxFiles = "dead", 2
	put := func(w encryption.Wrapper, i int) {
		t.Helper()
		f, err := Open(cfg, Deps{FS: mem, Wrapper: w})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Put([]Letter{letter(i)}); err != nil {
			t.Fatal(err)
		}
	}
	keyFiles := func() int {
		t.Helper()
		names, err := mem.List("dead/keys")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	dead := func() (names []string) {
		t.Helper()
		all, err := namesOf(mem, "dead")
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(all, func(name string) bool { return !strings.HasSuffix(name, Suffix) })
	}
	put(nil, 1)
	put(wrapper("k1"), 2)
	names := dead()
	if len(names) != 2 || keyFiles() != 1 {
		t.Fatalf("files %q, %d keys", names, keyFiles())
	}
	for i, name := range names {
		b, err := mem.UnsafeGetFileDataBuffer("dead/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if plain := bytes.Contains(b, letter(i+1).Frame); plain != (i == 0) {
			t.Errorf("letter %d is in the folder as it was: %v", i+1, plain)
		}
		got, err := Decode(slices.Clone(b), openKeys(t, mem, "dead/keys", wrapper("k1")))
		if err != nil || !reflect.DeepEqual(got, []Letter{letter(i + 1)}) {
			t.Errorf("letter %d: %+v, %v", i+1, got, err)
		}
	}
	// The file that needs the first key stays for one more, and the key with it.
	put(wrapper("k1"), 3)
	put(wrapper("k1"), 4)
	if keyFiles() != 3 {
		t.Errorf("%d keys, want those of three letters", keyFiles())
	}
	if _, err := Open(cfg, Deps{FS: mem}); err != nil || keyFiles() != 2 {
		t.Errorf("%d keys, want those of two letters, %v", keyFiles(), err)
	}
}

// FuzzDecodeEncrypted reads arbitrary bytes with keys.
func FuzzDecodeEncrypted(f *testing.F) {
	keys := openKeys(f, vfs.NewMem(), "/keys", wrapper("k1"))
	b, err := Encode([]Letter{letter(1), letter(2)}, keys)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		letters, _ := Decode(slices.Clone(b), keys)
		for i := range letters {
			if letters[i].Unread == nil && b[4] == VersionEncrypted && letters[i].Category != "web.1" && letters[i].Category != "web.2" {
				t.Errorf("a letter that was never written: %+v", letters[i])
			}
		}
	})
}
