// Package atomicfile replaces small files atomically: a reader, even after a crash or a power failure, finds the old content or
// the new content, and the new one once Write has returned.
package atomicfile

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// FileSystem is where files are replaced: [OS], or another one (package durable).
type FileSystem interface {
	// Create creates an empty file, or empties the one that exists.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncFolder makes the creation, renaming and removal of files in a folder durable.
	SyncFolder(dir string) error
}

// File is a file that is being written.
type File interface {
	io.WriteCloser
	Sync() error
}

// OS is the operating system's file system. Only the owner may read what is created.
var OS FileSystem = osFiles{}

type osFiles struct{}

func (osFiles) Create(name string) (File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
}
func (osFiles) Rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) Remove(name string) error     { return os.Remove(name) }
func (osFiles) SyncFolder(dir string) error  { return SyncFolder(dir) }

// Write replaces the content of a file of [OS] with the output of write; see [WriteOn].
func Write(name string, write func(io.Writer) error) error { return WriteOn(OS, name, write) }

// WriteOn replaces the content of a file with the output of write. It writes and syncs a temporary file in the same folder, renames
// it, and syncs the folder. If it fails, the file is unchanged, unless the sync of the folder failed: then it has the old or the new
// content. Calls for the same file must not be concurrent.
func WriteOn(files FileSystem, name string, write func(io.Writer) error) (err error) {
	temp := name + ".tmp"
	f, err := files.Create(temp)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 64<<10)
	if err = write(w); err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = files.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, files.Remove(temp))
	}
	return files.SyncFolder(filepath.Dir(name))
}

// WriteBytes replaces the file with b, see [Write].
func WriteBytes(name string, b []byte) error {
	return Write(name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// KeepSaved calls save after each token in dirty, at most once in each interval, and a last time when ctx ends if a token is
// pending. It returns when ctx has ended. It is for saved copies of state that changes often, which may lag a little.
func KeepSaved(ctx context.Context, dirty <-chan struct{}, every time.Duration, save func()) {
	for {
		select {
		case <-dirty:
			save()
		case <-ctx.Done():
			select {
			case <-dirty:
				save()
			default:
			}
			return
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// SyncFolder makes the creation, renaming and removal of files in a folder durable.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
