package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
)

const (
	// syncs are made to see how fast the disk is; slowSync is a median that makes committed writes slow, in the whole process.
	syncs    = 21
	slowSync = 20 * time.Millisecond
	// Free space below which a folder is nearly full, or full.
	nearlyFull, full = 2 << 30, 128 << 20
	// nearlyFullShare is the same as a share of the file system.
	nearlyFullShare = 0.05
)

// checkFolder: is the folder free, writable, fast and large enough? A folder that does not exist is created at the start; then its nearest
// parent that exists is looked at.
func (e *examination) checkFolder(folder app.Need) {
	name := folder.Flag[2:] + " folder"
	dir, found := nearestFolder(folder.Value)
	where := folder.Value
	if !found {
		where += " (to be created in " + dir + ")"
	}
	if found {
		if holder, held := lockHolder(filepath.Join(dir, "LOCK")); held {
			e.addCheck(Failed, name, "stop that process, or give another "+folder.Flag, "%s is in use by process %d", where, holder)
		}
	}
	took, err := measureSyncs(dir)
	switch {
	case err != nil:
		e.addCheck(Failed, name, "give this user the right to write there, free the disk, or give another "+folder.Flag, "%s is not writable: %v", where, app.WithoutPath(err))
		return
	case took > slowSync:
		e.addCheck(Warning, name, "use a disk with faster syncs: each committed write waits for one", "%s is writable; a sync takes %v", where, took.Round(100*time.Microsecond))
	default:
		e.addCheck(OK, name, "", "%s is writable; a sync takes %v", where, took.Round(10*time.Microsecond))
	}
	e.checkSpace(name, dir, folder.Flag)
}

func (e *examination) checkSpace(name, dir, flag string) {
	name += " space"
	available, total, err := e.machine.Space(dir)
	switch free := units.About(available); {
	case err != nil:
		e.addCheck(Warning, name, "look at it with df", "the free space of %s is unknown: %v", dir, err)
	case available < full:
		e.addCheck(Failed, name, "free the disk, or give another "+flag, "%s of %s free", free, units.About(total))
	case available < nearlyFull || float64(available) < nearlyFullShare*float64(total):
		e.addCheck(Warning, name, "free the disk, give another "+flag+", or shorten retention", "%s of %s free", free, units.About(total))
	default:
		e.addCheck(OK, name, "", "%s of %s free", free, units.About(total))
	}
}

// nearestFolder returns the folder, or the nearest of its parents that exists.
func nearestFolder(path string) (dir string, exact bool) {
	dir = filepath.Clean(path)
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); err == nil || filepath.Dir(at) == at {
			return at, at == dir
		}
	}
}

// measureSyncs writes and syncs a file in a folder and removes it. It returns the median time of a sync.
func measureSyncs(dir string) (median time.Duration, err error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return 0, fmt.Errorf("%s is not a folder", dir)
	}
	f, err := os.CreateTemp(dir, ".scribe-doctor-*")
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, f.Close(), ignoreMissing(os.Remove(f.Name())))
	}()
	block := make([]byte, 4<<10)
	var times []time.Duration
	for range syncs {
		begin := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
