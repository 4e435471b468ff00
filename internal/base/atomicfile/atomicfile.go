// Package atomicfile replaces small files as a whole: whoever reads one, also after a crash or a loss of power, finds what it was or what
// it is, and what it is once Write has returned.
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

// Write replaces the file with what write writes: it is written beside it, synced, renamed, and the folder is synced. Only the owner
// may read it. When it fails the file is what it was, unless the error is of the folder's sync: then it may be either. Calls for the
// same file must not run at the same time.
func Write(name string, write func(io.Writer) error) (err error) {
	temp := name + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
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
		err = os.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return SyncFolder(filepath.Dir(name))
}

// WriteBytes replaces the file with b, see [Write].
func WriteBytes(name string, b []byte) error {
	return Write(name, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// KeepSaved calls save after each token in dirty, at most once in every, and a last time when ctx ends if there is a token. It returns when
// ctx has ended. It is for copies of what changes often, and may be a little old.
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

// SyncFolder makes what was created, renamed or removed in a folder durable.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
