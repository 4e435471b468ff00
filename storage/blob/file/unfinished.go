package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// unfinishedFolder is where one store writes blobs that have no name yet: a folder of its own in .unfinished, locked for as long as the store uses it. The lock
// tells stores of other processes, which share .unfinished, that the files are not leftovers.
type unfinishedFolder struct {
	fs  vfs.FS
	tmp string

	mu struct {
		sync.Mutex
		dir  string    // "" before the first file
		lock io.Closer // of dir
		next uint64    // name of the next file
	}
}

const (
	lockName = "LOCK"
	// removedSuffix marks a folder that was locked by who removes it. Nobody writes there.
	removedSuffix = ".removed"
	// claimAttempts is how many names are tried: others may take a new folder for a leftover until it is locked.
	claimAttempts = 5
	// oldFileAge is from when on a file in .tmp is a leftover. Earlier versions write there, without a lock, and may do so beside this one.
	oldFileAge = time.Hour
)

// nameFile returns the path of a file that does not exist yet.
func (u *unfinishedFolder) nameFile() (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	// Not when the store is opened: who only reads, or deletes because the disk is full, must not need room.
	if u.mu.dir == "" {
		if err := u.claim(); err != nil {
			return "", fmt.Errorf("make a folder for unfinished blobs: %w", err)
		}
	}
	u.mu.next++
	return u.fs.PathJoin(u.mu.dir, strconv.FormatUint(u.mu.next, 10)), nil
}

// claim makes a folder and locks it. u.mu is held.
func (u *unfinishedFolder) claim() (err error) {
	for range claimAttempts {
		dir := u.fs.PathJoin(u.tmp, rand.Text())
		if err = u.fs.MkdirAll(dir, perm); err != nil {
			return err
		}
		lock, lockErr := u.fs.Lock(u.fs.PathJoin(dir, lockName))
		if err = lockErr; err != nil {
			_ = u.fs.Remove(dir)
			continue
		}
		// Another store may have locked the folder before this one did, and have removed it by now: this lock is then one of a file without a name. Since a
		// folder is renamed before it is emptied, the file with the name is the locked one.
		if _, err = u.fs.Stat(u.fs.PathJoin(dir, lockName)); err != nil {
			_ = removeLocked(u.fs, dir, lock)
			continue
		}
		u.mu.dir, u.mu.lock = dir, lock
		return nil
	}
	return err
}

// forget has the next file written to another folder, since the one of path can't be used any more.
func (u *unfinishedFolder) forget(path string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.dir != "" && u.mu.dir == u.fs.PathDir(path) {
		_ = u.mu.lock.Close()
		u.mu.dir, u.mu.lock = "", nil
	}
}

// release removes the folder. No file may be written any more.
func (u *unfinishedFolder) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.dir == "" {
		return
	}
	_ = removeLocked(u.fs, u.mu.dir, u.mu.lock) // what is left is removed when a store is opened again
	u.mu.dir, u.mu.lock = "", nil
}

// removeLeftovers removes what stores have left in tmp that do not run any more. Other stores may do the same at the same time.
func removeLeftovers(fsys vfs.FS, tmp string) error {
	names, err := fsys.List(tmp)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := fsys.PathJoin(tmp, name)
		info, err := fsys.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
		case strings.HasSuffix(name, removedSuffix):
			err = removeFolder(fsys, path)
		case info.IsDir():
			err = removeUnused(fsys, path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an unfinished blob: %w", err)
		}
	}
	return nil
}

// removeOldFiles removes what earlier versions have left in a folder, which need not exist.
func removeOldFiles(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(path)
		if err == nil && !info.IsDir() && time.Since(info.ModTime()) > oldFileAge {
			err = fsys.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an unfinished blob: %w", err)
		}
	}
	return nil
}

// removeUnused removes the folder of a store that does not hold its lock any more.
func removeUnused(fsys vfs.FS, dir string) error {
	lock, err := fsys.Lock(fsys.PathJoin(dir, lockName))
	if err != nil {
		return nil //nolint:nilerr // the store runs, or another one removes the folder
	}
	return removeLocked(fsys, dir, lock)
}

// removeLocked removes a folder whose lock the caller holds, and releases the lock. The folder gets another name first: from then on nobody can lock it, neither
// the store that has just made it nor another one that removes leftovers.
func removeLocked(fsys vfs.FS, dir string, lock io.Closer) error {
	defer func() { _ = lock.Close() }()
	if err := fsys.Rename(dir, dir+removedSuffix); err != nil {
		return err
	}
	return removeFolder(fsys, dir+removedSuffix)
}

// removeFolder removes a folder that nobody writes to. Others may be removing it as well.
func removeFolder(fsys vfs.FS, dir string) error {
	names, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := fsys.Remove(fsys.PathJoin(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// Somebody who wanted to lock the folder just before it was renamed may have made a file in it since.
	if err := fsys.Remove(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
