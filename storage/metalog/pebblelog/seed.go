package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/lifecycle"
	"scribe/storage/blob"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// errSeed means that the folder does not continue in the journal and can't be replaced.
var errSeed = errors.New("metalog: the folder needs a snapshot")

// seedingName is a file that exists while the files of a complete seed replace those of the folder. It lists them.
const seedingName = "SEEDING"

// lockName is Pebble's lock file.
const lockName = "LOCK"

// maxList bounds the list of a snapshot in bytes.
const maxList = 256 << 20

// prepareFolder finds out whether the folder continues in the journal, fetches a snapshot if it does not, or is damaged, and admits calls
// then. At a start, a folder that has applied something is shown also while the journal does not answer. One that is being replaced is known not to continue: showing it would be
// of no use, and the replica would halt where it only has to wait.
func (c *logCommitter) prepareFolder(damaged, replacing bool) error {
	r := c.e.replica
	for tries := 1; ; tries++ {
		err := c.continueFolder(damaged)
		switch {
		case isJournalFault(err), errors.Is(err, errFolder):
			return c.stopOr(err)
		case err == nil, errors.Is(err, errNoHead) && tries >= 3 && r.position().Seq > 0 && !replacing:
			r.folder.Store(new(lifecycle.Calls))
			r.changeState(func() {})
			return nil
		}
		if tries == 3 {
			c.e.opts.Logger.Warn("the folder can't be continued yet: trying again", "error", err)
		}
		select {
		case <-c.e.stop:
			return errStopped
		case <-time.After(c.e.opts.TakeoverAfter / 4):
		}
	}
}

// errNoHead says that the journal's head can't be read.
var errNoHead = errors.New("metalog: the journal does not answer")

// continueFolder makes sure that the entry after the folder's last one is in the journal, and replaces a folder that is damaged.
func (c *logCommitter) continueFolder(damaged bool) error {
	r := c.e.replica
	head, err := r.readHead(r.life)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoHead, err)
	}
	position := r.position()
	if err := journal.CheckPosition(position, head); err != nil {
		return err
	}
	switch {
	case damaged && head.Snapshot == 0: // the journal has everything from its first entry on
		err = c.emptyFolder()
	case damaged:
		err = c.seedFolder(head)
	case head.Seq > position.Seq && head.Snapshot > position.Seq:
		err = c.seedBehind(head)
	}
	if err != nil {
		return err
	}
	r.offerHead(head)
	return nil
}

// errEnough ends a read after its first entry.
var errEnough = errors.New("enough")

// seedBehind replaces the folder if the entry after its last one is not in the journal, or can't be read.
func (c *logCommitter) seedBehind(head journal.Head) error {
	r := c.e.replica
	ctx, cancel := context.WithTimeout(r.life, readLimit)
	defer cancel()
	_, err := r.reader.ReadEntries(ctx, r.position(), head, func(journal.Entry, journal.Position) error { return errEnough })
	switch {
	case errors.Is(err, errEnough):
		return nil
	case errors.Is(err, journal.ErrTrimmed), errors.Is(err, journal.ErrCorrupt):
		return c.seedFolder(head)
	default:
		return err
	}
}

// seedFolder replaces the folder by the newest snapshot that can be read.
func (c *logCommitter) seedFolder(head journal.Head) error {
	e, ctx := c.e, c.e.replica.life
	if e.opts.Snapshots == nil {
		return fmt.Errorf("%w: entry %d of the journal is not there any more, and there is no store of snapshots", errSeed, e.replica.position().Seq+1)
	}
	var lists []blob.Info
	for info, err := range e.opts.Snapshots.List(ctx, snapshotPrefix(e.opts.Name)) {
		if err != nil {
			return err
		}
		lists = append(lists, info)
	}
	failures := []error{fmt.Errorf("%w: entry %d of the journal is not there any more", errSeed, e.replica.position().Seq+1)}
	for _, info := range slices.Backward(lists) {
		list, err := e.fetchSnapshot(ctx, info, head)
		if err == nil {
			return c.adoptSeed(list)
		}
		e.opts.Logger.Warn("snapshot can't be used: trying the one before", "snapshot", info.Key, "error", err)
		failures = append(failures, fmt.Errorf("%s: %w", info.Key, err))
		if errors.Is(err, blob.ErrUnavailable) || ctx.Err() != nil {
			return errors.Join(failures[1:]...) // not the snapshot's fault
		}
	}
	return errors.Join(failures...)
}

// readList reads the list of a snapshot.
func readList(ctx context.Context, store blob.Store, info blob.Info) (schema.Snapshot, error) {
	if info.Size > maxList {
		return schema.Snapshot{}, fmt.Errorf("%w: a list of %d bytes", schema.ErrCorrupt, info.Size)
	}
	b := make([]byte, info.Size)
	if err := store.ReadAt(ctx, info.Key, b, 0); err != nil {
		return schema.Snapshot{}, err
	}
	return schema.DecodeSnapshot(b)
}

// fetchSnapshot fetches the files of a snapshot into the seed's folder, and proves that they can be opened.
func (e *Engine) fetchSnapshot(ctx context.Context, info blob.Info, head journal.Head) (list schema.Snapshot, err error) {
	if list, err = readList(ctx, e.opts.Snapshots, info); err != nil {
		return list, err
	}
	position := journal.Position{Seq: list.Seq, Chain: list.Chain}
	if err := journal.CheckPosition(position, head); err != nil {
		return list, err
	}
	fs := e.opts.FS
	dir := fs.PathJoin(e.dir, seedName)
	if err := errors.Join(fs.RemoveAll(dir), fs.MkdirAll(dir, 0o755)); err != nil {
		return list, err
	}
	for _, f := range list.Files {
		if err := e.fetchFile(ctx, dir, f); err != nil {
			return list, fmt.Errorf("file %s: %w", f.Name, err)
		}
	}
	if err := syncFolder(fs, dir); err != nil {
		return list, err
	}
	applied, err := appliedIn(e.opts, dir)
	if err == nil && applied != list.Applied {
		err = fmt.Errorf("%w: it has applied entry %d, its list says %d", schema.ErrCorrupt, applied.Seq, list.Seq)
	}
	return list, err
}

// fetchFile fetches a file of a snapshot.
func (e *Engine) fetchFile(ctx context.Context, dir string, f schema.SnapshotFile) error {
	data := f.Data
	if f.ID != ([16]byte{}) {
		key := tableKey(e.opts.Name, f.ID)
		info, err := e.opts.Snapshots.Stat(ctx, key)
		if err != nil {
			return err
		}
		if uint64(info.Size) != f.Size {
			return fmt.Errorf("%w: its blob has %d bytes, not %d", schema.ErrCorrupt, info.Size, f.Size)
		}
		data = make([]byte, f.Size)
		if err := e.opts.Snapshots.ReadAt(ctx, key, data, 0); err != nil {
			return err
		}
	}
	if sum := crc32.Checksum(data, castagnoli); sum != f.CRC {
		return fmt.Errorf("%w: its checksum is %08x, not %08x", schema.ErrCorrupt, sum, f.CRC)
	}
	return writeFile(e.opts.FS, e.opts.FS.PathJoin(dir, f.Name), data)
}

// writeFile writes a new file and syncs it.
func writeFile(fs vfs.FS, path string, data []byte) error {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func syncFolder(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// adoptSeed replaces the folder's files by those of the seed, and opens them.
func (c *logCommitter) adoptSeed(list schema.Snapshot) error {
	e, fs := c.e, c.e.opts.FS
	err := c.exchangeFiles(func() error {
		var names []string
		for _, f := range list.Files {
			names = append(names, f.Name)
		}
		marker := fs.PathJoin(e.dir, seedingName)
		if err := errors.Join(writeFile(fs, marker, []byte(strings.Join(names, "\n"))), syncFolder(fs, e.dir)); err != nil {
			return err
		}
		return finishSeed(fs, e.dir)
	})
	if err != nil {
		return fmt.Errorf("%w: replace it by a snapshot: %w", errFolder, err)
	}
	e.metrics.seeds.Inc()
	e.opts.Logger.Info("folder replaced by a snapshot", "entry", list.Seq, "files", len(list.Files))
	return nil
}

// emptyFolder removes the files of a damaged folder: everything is read from the journal again.
func (c *logCommitter) emptyFolder() error {
	if err := c.exchangeFiles(func() error { return c.e.clearFolder(c.e.replica.checkDamage()) }); err != nil {
		return fmt.Errorf("%w: empty it: %w", errFolder, err)
	}
	return nil
}

// exchangeFiles closes the database, exchanges its files, and opens it. No calls are admitted, so nobody else uses it. An error leaves no
// usable folder: the next process goes on.
func (c *logCommitter) exchangeFiles(exchange func() error) error {
	e := c.e
	e.guard.armed.Store(false)
	defer e.guard.arm()
	err := e.guard.unlessLost(func() error {
		if err := e.db.Close(); err != nil && !isDamaged(err) {
			return err
		}
		if err := exchange(); err != nil {
			return err
		}
		e.replica.damage.Store(nil)
		return e.reopenFolder()
	})
	if err != nil {
		return err
	}
	c.retired, c.boundary = e.retired, e.boundary.Load()
	return nil
}

// finishSeed completes a replacement of the folder's files that adoptSeed began, if there is one, and removes leftover snapshots. It is
// safe to repeat after a crash: a file in the seed replaces the folder's, and a listed file that is not in the seed was moved before.
func finishSeed(fs vfs.FS, dir string) error {
	seed, marker := fs.PathJoin(dir, seedName), fs.PathJoin(dir, seedingName)
	listed, err := readListed(fs, marker)
	if err != nil {
		return err
	}
	if listed != nil {
		if err := moveSeed(fs, dir, seed, listed); err != nil {
			return err
		}
		if err := errors.Join(fs.Remove(marker), syncFolder(fs, dir)); err != nil {
			return err
		}
	}
	return errors.Join(fs.RemoveAll(seed), fs.RemoveAll(fs.PathJoin(dir, checkpointName)))
}

// readListed returns the names in a marker, nil if there is none.
func readListed(fs vfs.FS, marker string) ([]string, error) {
	info, err := fs.Stat(marker)
	if err != nil {
		return nil, nil //nolint:nilerr // it does not exist, or the folder can't be read: then opening it fails
	}
	data, err := readFile(fs, marker, info.Size())
	return strings.Split(string(data), "\n"), err
}

func moveSeed(fs vfs.FS, dir, seed string, listed []string) error {
	present, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range present {
		if name != lockName && name != seedName && name != seedingName && !slices.Contains(listed, name) {
			if err := fs.RemoveAll(fs.PathJoin(dir, name)); err != nil {
				return err
			}
		}
	}
	moving, err := fs.List(seed)
	if err != nil {
		return err
	}
	for _, name := range moving {
		if err := fs.Rename(fs.PathJoin(seed, name), fs.PathJoin(dir, name)); err != nil {
			return err
		}
	}
	return syncFolder(fs, dir)
}

// isDamaged reports whether an error of opening a folder means that its files are damaged or missing. Pebble does not mark the error
// of a damaged manifest.
func isDamaged(err error) bool {
	return pebble.IsCorruptionError(err) || errors.Is(err, metalog.ErrCorrupt) || errors.Is(err, os.ErrNotExist) ||
		strings.Contains(err.Error(), "malformed manifest")
}

// clearFolder removes a damaged database, which a snapshot replaces.
func (e *Engine) clearFolder(damage error) error {
	e.opts.Logger.Error("folder is damaged: it is replaced by a snapshot", "error", damage)
	fs := e.opts.FS
	names, err := fs.List(e.dir)
	for _, name := range names {
		if name != lockName {
			err = errors.Join(err, fs.RemoveAll(fs.PathJoin(e.dir, name)))
		}
	}
	return err
}
