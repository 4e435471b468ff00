package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestReadCopy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "catalog")
	file := encoded(t, exampleSnapshot)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCopy(vfs.Default, path)
	if err != nil || !equalSnapshots(c, exampleSnapshot) {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile(path, file[:len(file)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadCopy(vfs.Default, path); !errors.Is(err, errDamaged) || c.Categories != nil {
		t.Errorf("a file that was cut: %+v, %v", c, err)
	}
	if _, err := ReadCopy(vfs.Default, path+"x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
