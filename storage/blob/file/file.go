package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/storage/blob"
	"scribe/storage/blob/internal/gate"
)

// Options configure a Store. The zero value has the defaults.
type Options struct {
	// FS is the file system; nil means the operating system's.
	FS vfs.FS
}

// Store is a blob.Store in a folder.
type Store struct {
	*gate.Store
	fs  vfs.FS
	dir string

	unfinished unfinishedFolder

	mu struct {
		sync.Mutex
		// durable has the folders below dir that were synced into their parents, up to dir. It is a cache: dropping an entry
		// costs a few syncs.
		durable map[string]struct{}
	}
}

const (
	// unfinishedName is the folder of unfinished blobs. No key has a part that begins with a dot.
	unfinishedName = ".unfinished"
	// oldUnfinishedName is the same of earlier versions. They do not start where it has folders.
	oldUnfinishedName = ".tmp"
	// maxDurable bounds the cache of durable folders. A store has one for each retention class.
	maxDurable = 4096
	perm       = 0o755
)

// New opens the store in dir, and creates dir and its parents if they do not exist. It removes unfinished blobs of stores that do not
// run any more.
func New(dir string, opts Options) (*Store, error) {
	if dir == "" {
		return nil, errors.New("file: open store: no folder given")
	}
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	dir = opts.FS.PathJoin(dir) // cleaned: folders are compared as text
	s := &Store{fs: opts.FS, dir: dir, unfinished: unfinishedFolder{fs: opts.FS, tmp: opts.FS.PathJoin(dir, unfinishedName)}}
	s.Store = gate.NewStore(new(gate.Gate), gate.Engine{
		Put: s.putBlob, ReadAt: s.readBlob, Stat: s.statBlob, List: s.listBlobs, Delete: s.deleteBlob, Release: s.unfinished.release,
	})
	s.mu.durable = map[string]struct{}{}
	if err := s.openFolder(); err != nil {
		return nil, fmt.Errorf("file: open store in %s: %w", dir, noSpace(err))
	}
	return s, nil
}

func (s *Store) openFolder() error {
	if err := durable.CreateFolder(s.fs, s.unfinished.tmp, perm); err != nil {
		return err
	}
	if err := removeLeftovers(s.fs, s.unfinished.tmp); err != nil {
		return err
	}
	return removeOldFiles(s.fs, s.fs.PathJoin(s.dir, oldUnfinishedName))
}

// readBlob opens the file for each call: that costs a few microseconds, and files left open would keep the space of deleted blobs.
func (s *Store) readBlob(_ context.Context, key string, dst []byte, off int64) error {
	f, err := s.fs.Open(s.filePath(key))
	if err != nil {
		return notFound(err)
	}
	defer func() { _ = f.Close() }()
	var readErr error
	if off >= 0 && len(dst) > 0 {
		if _, readErr = f.ReadAt(dst, off); readErr == nil {
			return nil
		}
	}
	// Nothing to read, or the read failed: find the error.
	info, err := f.Stat()
	switch {
	case err != nil:
		return errors.Join(readErr, err)
	case info.IsDir():
		return blob.ErrNotFound
	case off < 0 || off > info.Size() || int64(len(dst)) > info.Size()-off:
		return fmt.Errorf("%w of %d bytes", blob.ErrRange, info.Size())
	}
	return readErr
}

func (s *Store) statBlob(_ context.Context, key string) (blob.Info, error) {
	info, err := s.fs.Stat(s.filePath(key))
	switch {
	case err != nil:
		return blob.Info{}, notFound(err)
	case info.IsDir():
		return blob.Info{}, blob.ErrNotFound
	}
	return blob.Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

// deleteBlob does not sync the folder: if a crash brings the blob back, retention lists and deletes it again.
func (s *Store) deleteBlob(ctx context.Context, key string) error {
	// Remove would also remove an empty folder.
	if _, err := s.statBlob(ctx, key); err != nil {
		return err
	}
	return notFound(s.fs.Remove(s.filePath(key)))
}

func (s *Store) filePath(key string) string {
	return s.fs.PathJoin(s.dir, s.fs.PathJoin(strings.Split(key, "/")...))
}

// notFound converts the errors of a missing path into blob.ErrNotFound.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = fmt.Errorf("%s: %w", pe.Path, pe.Err) // the operation is in the text already
		}
		return fmt.Errorf("%w: %w", blob.ErrNotFound, err)
	}
	return err
}

// noSpace converts the errors of a full disk or quota into blob.ErrNoSpace.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", blob.ErrNoSpace, err)
	}
	return err
}
