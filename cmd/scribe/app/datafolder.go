package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// withoutPath removes the file name from an error of the file system, for callers that name the file themselves.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// lockData creates the data folder if it does not exist, and locks it. A second process on the same folder would write to the same logs and
// blobs.
func lockData(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("data folder %s can't be created: %w", dir, withoutPath(err))
	}
	path := filepath.Join(dir, "LOCK")
	lock := flock.New(path)
	ok, err := lock.TryLock()
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("data folder %s is not writable for this user: %w", dir, withoutPath(err))
	case err != nil:
		return nil, fmt.Errorf("lock data folder %s: %w", dir, withoutPath(err))
	case !ok:
		return nil, fmt.Errorf("data folder %s is in use by another scribe process: stop that one, or give another --data", dir)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s is not writable: %w", dir, withoutPath(err)), lock.Close())
	}
	err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", dir, err), lock.Close())
	}
	return lock.Close, nil
}
