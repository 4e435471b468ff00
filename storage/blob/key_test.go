package blob_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/storage/blob"
)

func TestCheckKey(t *testing.T) {
	for _, key := range []string{
		"a", "0", "Z", "a/b", "blobs/72h/01890a5d-ac96-774b-bcce-b302099a8057", "a.b_c-d/e..f/g--", strings.Repeat("k", blob.MaxKeyPart),
	} {
		if err := blob.CheckKey(key); err != nil {
			t.Error(err)
		}
		// Every beginning of a key is a prefix.
		for i := range len(key) + 1 {
			if err := blob.CheckPrefix(key[:i]); err != nil {
				t.Error(err)
			}
		}
	}
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", ".a", "-a", "_a", "a/..", "a/.b", "a/-", "a b", "a\\b", "ä", "a\x00", "a\xff",
		strings.Repeat("k", blob.MaxKeyPart+1), strings.Repeat("kk/", blob.MaxKey/3) + "kkk",
	} {
		err := blob.CheckKey(key)
		if !errors.Is(err, blob.ErrInvalidKey) {
			t.Errorf("CheckKey %q: %v", key, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("CheckKey of %d bytes has an error of %d bytes", len(key), len(err.Error()))
		}
	}
	for _, prefix := range []string{"/", "//", "a//", ".", "a/.", "-", "a b", strings.Repeat("k", blob.MaxKeyPart+1)} {
		if err := blob.CheckPrefix(prefix); !errors.Is(err, blob.ErrInvalidKey) {
			t.Errorf("CheckPrefix %q: %v", prefix, err)
		}
	}
}

// TestKeysAreFileNames: whatever is accepted stays below the folder that it is put into.
func TestKeysAreFileNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringOfN(rapid.RuneFrom([]rune("ab/.-_ \\:")), 1, 20, -1).Draw(t, "key")
		if blob.CheckKey(key) == nil && !fs.ValidPath(key) {
			t.Fatalf("%q is accepted", key)
		}
	})
}
