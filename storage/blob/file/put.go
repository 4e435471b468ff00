package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/storage/blob"
)

// category labels these writes in Pebble's disk statistics.
const category = vfs.DiskWriteCategory("scribe-blob")

// putBlob implements Put. See the package comment for the steps.
func (s *Store) putBlob(ctx context.Context, key string, parts [][]byte) error {
	return noSpace(s.putFile(ctx, s.filePath(key), parts))
}

func (s *Store) putFile(ctx context.Context, path string, parts [][]byte) (err error) {
	// Before the bytes are written: most repeated keys end here, at the price of a look-up.
	if _, err := s.fs.Stat(path); err == nil {
		return blob.ErrExists
	}
	folder := s.fs.PathDir(path)
	if err := s.makeDurable(folder); err != nil {
		return err
	}
	tmp, err := s.unfinished.nameFile()
	if err != nil {
		return err
	}
	if err := s.writeFile(ctx, tmp, parts); err != nil {
		_ = s.fs.Remove(tmp) // a leftover is removed when the store is opened again
		if errors.Is(err, fs.ErrNotExist) {
			s.unfinished.forget(tmp) // somebody may have removed the folder
		}
		return err
	}
	// In any case the name in .tmp is not needed any more. Its removal need not be durable.
	defer func() { _ = s.fs.Remove(tmp) }()

	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.fs.Link(tmp, path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: %w", blob.ErrExists, err)
		}
		s.forgetFolder(folder) // somebody may have removed the folder
		return err
	}
	if err := durable.SyncFolder(s.fs, folder); err != nil {
		// The blob exists, maybe not for long. Nothing refers to it and nothing will, so free its space if possible.
		_ = s.fs.Remove(path)
		return fmt.Errorf("sync the folder: %w", err)
	}
	return nil
}

// writeFile writes and syncs a new file.
func (s *Store) writeFile(ctx context.Context, path string, parts [][]byte) error {
	f, err := s.fs.Create(path, category)
	if err != nil {
		return err
	}
	err = writeParts(ctx, f, parts)
	if err == nil {
		if serr := f.Sync(); serr != nil {
			err = fmt.Errorf("sync: %w", serr)
		}
	}
	// Some file systems report a failed write only here.
	return errors.Join(err, f.Close())
}

// Parts of less than smallPart bytes are gathered: otherwise a blob of many small blocks would cost a system call for each.
const (
	smallPart  = 64 << 10
	gatherSize = 256 << 10
	// maxWrite is how many bytes are written between two checks of the context.
	maxWrite = 4 << 20
)

var gatherBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, gatherSize)
	return &b
}}

func writeParts(ctx context.Context, f vfs.File, parts [][]byte) error {
	buf, _ := gatherBuffers.Get().(*[]byte)
	defer gatherBuffers.Put(buf)
	gathered := (*buf)[:0]
	flush := func() error {
		if len(gathered) == 0 {
			return nil
		}
		err := writeAll(ctx, f, gathered)
		gathered = gathered[:0]
		return err
	}
	// A file of another FS may change the buffer while it writes it (vfs.File), but parts belong to the caller: such a file gets
	// copies only.
	copyAll := f.Fd() == vfs.InvalidFd

	for _, part := range parts {
		for len(part) > 0 {
			if len(part) >= smallPart && !copyAll {
				if err := flush(); err != nil {
					return err
				}
				if err := writeAll(ctx, f, part); err != nil {
					return err
				}
				break
			}
			n := min(len(part), cap(gathered)-len(gathered))
			gathered = append(gathered, part[:n]...)
			part = part[n:]
			if len(gathered) == cap(gathered) {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

func writeAll(ctx context.Context, f vfs.File, b []byte) error {
	for len(b) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(b), maxWrite)
		if _, err := f.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return ctx.Err()
}

// makeDurable makes sure that folder exists and survives a crash.
//
// It must not assume that an existing folder is durable. That would lose a blob: Put A creates the folder; Put B finds it, links
// its blob, syncs the folder and returns; the machine crashes before A has synced the folder into its parent.
func (s *Store) makeDurable(folder string) error {
	s.mu.Lock()
	_, ok := s.mu.durable[folder]
	s.mu.Unlock()
	if ok {
		return nil
	}
	if err := s.fs.MkdirAll(folder, perm); err != nil {
		return err
	}
	for d := folder; d != s.dir; {
		d = s.fs.PathDir(d)
		if err := durable.SyncFolder(s.fs, d); err != nil {
			return fmt.Errorf("sync the folder %s: %w", d, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.durable) >= maxDurable {
		clear(s.mu.durable)
	}
	s.mu.durable[folder] = struct{}{}
	return nil
}

func (s *Store) forgetFolder(folder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.durable, folder)
}
