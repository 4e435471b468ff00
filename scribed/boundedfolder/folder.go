// Package boundedfolder keeps the files of a folder within bounds: the oldest are removed to free capacity.
package boundedfolder

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Folder knows the files of a folder whose names are in the order of their age. It is not safe for concurrent use.
type Folder struct {
	FS  vfs.FS
	Dir string
	// MaxBytes bounds the total size of the files, MaxFiles their number; 0 = any number.
	MaxBytes int64
	MaxFiles int

	files []boundedFile // oldest first
	bytes int64
}

type boundedFile struct {
	name  string
	bytes int64
}

// FindFiles adds the files whose names match. It skips those that are removed meanwhile.
func (f *Folder) FindFiles(match func(name string) bool) error {
	names, err := f.FS.List(f.Dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if !match(name) {
			continue
		}
		info, err := f.FS.Stat(f.FS.PathJoin(f.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		f.files = append(f.files, boundedFile{name, info.Size()})
		f.bytes += info.Size()
	}
	return nil
}

// AddFile adds the newest file, unless it is a known one that was written again.
func (f *Folder) AddFile(name string, bytes int64) {
	if !slices.ContainsFunc(f.files, func(known boundedFile) bool { return known.name == name }) {
		f.files = append(f.files, boundedFile{name, bytes})
		f.bytes += bytes
	}
}

// MakeSpace removes the oldest files until one more, of n bytes, is within the bounds. removed and freed count those that were
// still there.
func (f *Folder) MakeSpace(n int64) (removed int, freed int64, err error) {
	for len(f.files) > 0 && (f.MaxFiles > 0 && len(f.files) >= f.MaxFiles || f.bytes+n > f.MaxBytes) {
		oldest := f.files[0]
		err := f.FS.Remove(f.FS.PathJoin(f.Dir, oldest.name))
		switch {
		case err == nil:
			removed++
			freed += oldest.bytes
		case !errors.Is(err, fs.ErrNotExist):
			return removed, freed, err
		}
		f.files = f.files[1:]
		f.bytes -= oldest.bytes
	}
	return removed, freed, nil
}

// CountFiles returns the number of files and their total size.
func (f *Folder) CountFiles() (files int, bytes int64) { return len(f.files), f.bytes }
