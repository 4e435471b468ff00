// Package durable makes changes of folders survive a crash of the machine, on Pebble's file systems, which tests let crash.
package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/atomicfile"
)

// ReplaceFile replaces the content of a file with the output of write, as [atomicfile.WriteOn] does.
func ReplaceFile(fsys vfs.FS, name string, write func(io.Writer) error) error {
	if fsys == vfs.Default {
		return atomicfile.Write(name, write) // with the permissions of a private file, which vfs cannot set
	}
	return atomicfile.WriteOn(replaceable{fsys}, name, write)
}

// replaceable is a file system of Pebble for package atomicfile.
type replaceable struct{ vfs.FS }

func (r replaceable) Create(name string) (atomicfile.File, error) {
	return r.FS.Create(name, vfs.WriteCategoryUnspecified)
}

func (r replaceable) SyncFolder(dir string) error { return SyncFolder(r.FS, dir) }

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
