package durable

import (
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FailStopFS lets a database that is written in bulk end at its first failed write, for example on a full disk. Pebble repeats failed flushes
// for ever, and ends the process when its manifest can't be written. So it sees no failed write: the first one is kept for Err, and from then
// on all writes are dropped, as if power had been lost at that moment. Whoever uses the database asks Err after opening it, after each
// write, and before relying on any.
type FailStopFS struct {
	vfs.FS
	failed atomic.Pointer[error]
	// dropped holds files that are made after the failure.
	dropped *vfs.MemFS
}

// NewFailStopFS returns a file system for one database.
func NewFailStopFS(fsys vfs.FS) *FailStopFS { return &FailStopFS{FS: fsys, dropped: vfs.NewMem()} }

// Err returns the first failed write; nil if there is none.
func (s *FailStopFS) Err() error {
	if err := s.failed.Load(); err != nil {
		return fmt.Errorf("the database can't be written: %w: free space if the disk is full, and repeat", *err)
	}
	return nil
}

func (s *FailStopFS) stopped() bool { return s.failed.Load() != nil }

// keepError keeps the error of a write, if it is the first.
func (s *FailStopFS) keepError(err error) {
	if err != nil {
		s.failed.CompareAndSwap(nil, &err)
	}
}

// change runs a change of the file system.
func (s *FailStopFS) change(fn func() error) {
	if !s.stopped() {
		s.keepError(fn())
	}
}

// create makes a file that is written; a dropped one after a failure.
func (s *FailStopFS) create(fn func() (vfs.File, error)) (vfs.File, error) {
	if !s.stopped() {
		f, err := fn()
		if err == nil {
			return &failStopFile{f, s}, nil
		}
		s.keepError(err)
	}
	return s.dropped.Create("dropped", vfs.WriteCategoryUnspecified)
}

// Create implements vfs.FS.
func (s *FailStopFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.create(func() (vfs.File, error) { return s.FS.Create(name, category) })
}

// ReuseForWrite implements vfs.FS.
func (s *FailStopFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return s.create(func() (vfs.File, error) { return s.FS.ReuseForWrite(oldname, newname, category) })
}

// OpenDir implements vfs.FS. Folders are opened to be synced.
func (s *FailStopFS) OpenDir(name string) (vfs.File, error) {
	return s.create(func() (vfs.File, error) { return s.FS.OpenDir(name) })
}

// Link implements vfs.FS.
func (s *FailStopFS) Link(oldname, newname string) error {
	s.change(func() error { return s.FS.Link(oldname, newname) })
	return nil
}

// Remove implements vfs.FS.
func (s *FailStopFS) Remove(name string) error {
	if s.stopped() {
		return nil
	}
	return s.FS.Remove(name) // Pebble bears the error
}

// Rename implements vfs.FS.
func (s *FailStopFS) Rename(oldname, newname string) error {
	s.change(func() error { return s.FS.Rename(oldname, newname) })
	return nil
}

// Unwrap implements vfs.FS.
func (s *FailStopFS) Unwrap() vfs.FS { return s.FS }

// failStopFile is a file that is written.
type failStopFile struct {
	vfs.File
	fs *FailStopFS
}

// Write implements vfs.File.
func (f *failStopFile) Write(p []byte) (int, error) {
	f.fs.change(func() error { _, err := f.File.Write(p); return err })
	return len(p), nil
}

// WriteAt implements vfs.File.
func (f *failStopFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.change(func() error { _, err := f.File.WriteAt(p, off); return err })
	return len(p), nil
}

// Preallocate implements vfs.File.
func (f *failStopFile) Preallocate(offset, length int64) error {
	f.fs.change(func() error { return f.File.Preallocate(offset, length) })
	return nil
}

// Sync implements vfs.File.
func (f *failStopFile) Sync() error {
	f.fs.change(f.File.Sync)
	return nil
}

// SyncData implements vfs.File.
func (f *failStopFile) SyncData() error {
	f.fs.change(f.File.SyncData)
	return nil
}

// SyncTo implements vfs.File.
func (f *failStopFile) SyncTo(length int64) (full bool, err error) {
	f.fs.change(func() error { full, err = f.File.SyncTo(length); return err })
	return full, nil
}

// Close implements vfs.File.
func (f *failStopFile) Close() error {
	f.fs.keepError(f.File.Close())
	return nil
}
