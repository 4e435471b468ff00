// Package durable makes changes of folders survive a crash of the machine, on Pebble's file systems, which tests let crash.
package durable

import (
	"errors"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// CreateFolder creates a folder and its parents, and syncs the folders that it changed.
func CreateFolder(fsys vfs.FS, dir string, perm os.FileMode) error {
	var made []string
	for d := fsys.PathJoin(dir); ; {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, d)
		parent := fsys.PathDir(d)
		if parent == d {
			break
		}
		d = parent
	}
	if err := fsys.MkdirAll(dir, perm); err != nil {
		return err
	}
	for _, d := range made {
		if err := SyncFolder(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// SyncFolder makes additions and removals of names in a folder durable.
func SyncFolder(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
