package file

import (
	"context"
	"errors"
	"slices"
	"strings"

	"scribe/storage/blob"
)

// listBlobs reads a whole folder, which takes about 100 bytes of memory for each blob in it, but stats files only as they are
// yielded.
func (s *Store) listBlobs(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	w := listWalk{ctx: ctx, store: s, yield: yield}
	// The folder part of the prefix, with its slash, and the beginning of the names in that folder.
	cut := strings.LastIndexByte(prefix, '/') + 1
	return w.walkFolder(prefix[:cut], prefix[cut:])
}

// listWalk is the state of one List.
type listWalk struct {
	ctx   context.Context
	store *Store
	yield func(blob.Info) error
}

// walkFolder yields the blobs of a folder and its subfolders whose names begin with begin. base is the key's prefix for the
// folder: empty or with a slash at the end.
//
// Keys are ordered by their bytes, and in a key the name of a folder is followed by a slash. Of the permitted characters only '-'
// and '.' sort before the slash: for the folder "a", the keys "a/..." come after "a-1" and "a.b", but before "a0". So a folder
// waits until all names that continue its own with one of the two have passed.
func (w *listWalk) walkFolder(base, begin string) error {
	path := w.store.dir
	if base != "" {
		path = w.store.filePath(strings.TrimSuffix(base, "/"))
	}
	names, err := w.store.fs.List(path)
	if err = notFound(err); err != nil {
		// The prefix names a missing folder, or a file in place of one.
		if info, serr := w.store.fs.Stat(path); errors.Is(err, blob.ErrNotFound) || serr == nil && !info.IsDir() {
			return nil
		}
		return err
	}
	slices.Sort(names)
	var waiting []string // each continues the one before
	for _, name := range names {
		if !strings.HasPrefix(name, begin) || blob.CheckKey(base+name) != nil {
			continue // .tmp, or a foreign file
		}
		for len(waiting) > 0 && !precedesSlash(waiting[len(waiting)-1], name) {
			if waiting, err = w.enterLast(base, waiting); err != nil {
				return err
			}
		}
		isFolder, err := w.yieldEntry(base + name)
		if err != nil {
			return err
		}
		if isFolder {
			waiting = append(waiting, name)
		}
	}
	for len(waiting) > 0 {
		if waiting, err = w.enterLast(base, waiting); err != nil {
			return err
		}
	}
	return nil
}

// precedesSlash reports whether name, which is longer than the folder's name, comes before the keys below folder.
func precedesSlash(folder, name string) bool {
	return len(name) > len(folder) && strings.HasPrefix(name, folder) && name[len(folder)] < '/'
}

// enterLast walks the last waiting folder and returns the others.
func (w *listWalk) enterLast(base string, waiting []string) ([]string, error) {
	last := len(waiting) - 1
	return waiting[:last], w.walkFolder(base+waiting[last]+"/", "")
}

// yieldEntry yields the blob under key, unless that is a folder.
func (w *listWalk) yieldEntry(key string) (isFolder bool, err error) {
	if err := w.ctx.Err(); err != nil {
		return false, err
	}
	info, err := w.store.fs.Stat(w.store.filePath(key))
	switch err = notFound(err); {
	case errors.Is(err, blob.ErrNotFound):
		return false, nil // deleted meanwhile
	case err != nil:
		return false, err
	case info.IsDir():
		return true, nil
	}
	return false, w.yield(blob.Info{Key: key, Size: info.Size(), Modified: info.ModTime()})
}
