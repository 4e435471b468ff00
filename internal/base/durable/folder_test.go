package durable_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
)

// Folders survive a crash right after their creation, and so do names after a sync.
func TestFoldersOutliveACrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	for _, dir := range []string{"a/b/c", "a/b/d", "a"} {
		if err := durable.CreateFolder(fs, dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if _, err := fs.CrashClone(vfs.CrashCloneCfg{}).Stat(dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	f, err := fs.Create("a/b/c/file", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := durable.SyncFolder(fs, "a/b/c"); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CrashClone(vfs.CrashCloneCfg{}).Stat("a/b/c/file"); err != nil {
		t.Error(err)
	}
	if err := durable.SyncFolder(fs, "none"); err == nil {
		t.Error("a missing folder was synced")
	}
}
