// Package encryptiontest makes key files for tests.
package encryptiontest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/storage/blob/encryption"
)

// KeyFile returns a key file with new keys of the names, in this order.
func KeyFile(t testing.TB, names ...string) encryption.KeyFile {
	t.Helper()
	var text strings.Builder
	text.WriteString("# made by a test\n\n")
	for _, name := range names {
		line, err := encryption.NewFileKey(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(line)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return encryption.KeyFile{Path: path}
}
