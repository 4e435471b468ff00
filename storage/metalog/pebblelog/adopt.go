package pebblelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/base/durable"
	"scribe/storage/blob"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// Adoption is where a journal begins that continues the folder of an engine without one.
type Adoption struct {
	// Position is that of an entry that never was: the folder counts as what the entries up to it left.
	journal.Position
	// Time is the folder's clock, Unix µs: no engine told a time above it.
	Time int64
}

// exportSuffix is the suffix of a folder in which an export works, next to the folder that it exports.
const exportSuffix = ".export"

// ExportFolder stores a snapshot of the folder dir of an engine without a journal, which must not run, as that of a replica, under opts.Name in
// opts.Snapshots. It changes nothing in the folder, and does not make it that of a replica: see AdoptFolder. Each call takes another position, after
// those of all snapshots in the store, so that no journal that continues there is confused with one of before.
func ExportFolder(ctx context.Context, dir string, opts Options) (at Adoption, err error) {
	if err := opts.Validate(); err != nil {
		return at, err
	}
	opts = opts.withDefaults()
	defer func() {
		if err != nil {
			err = fmt.Errorf("metalog: export %s: %w", dir, err)
		}
	}()
	if at.Seq, err = nextSnapshot(ctx, opts); err != nil {
		return at, err
	}
	opts.Random.Read(at.Chain[:])
	work := dir + exportSuffix
	if err := errors.Join(opts.FS.RemoveAll(work), opts.FS.MkdirAll(work, 0o755)); err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, opts.FS.RemoveAll(work)) }()
	copied, converted := opts.FS.PathJoin(work, "copy"), opts.FS.PathJoin(work, "replica")
	err = changeFolder(dir, opts, true, func(db *pebble.DB) error {
		if err := checkOwnFolder(db); err != nil {
			return err
		}
		if at.Time, err = readClock(db); err != nil {
			return err
		}
		return errors.Join(db.Flush(), db.Checkpoint(copied))
	})
	if err != nil {
		return at, err
	}
	err = changeFolder(copied, opts, false, func(db *pebble.DB) error {
		return errors.Join(stageReplica(db, at, pebble.NoSync), db.Flush(), db.Checkpoint(converted))
	})
	if err != nil {
		return at, err
	}
	_, err = newExporter(opts).storeFolder(ctx, converted)
	return at, err
}

// ExportTables stores the tables of the folder dir of an engine, which may run: a later ExportFolder finds most of what it needs in opts.Snapshots then. It returns how many
// tables there are, and their bytes.
func ExportTables(ctx context.Context, dir string, opts Options) (tables int, bytes int64, err error) {
	opts = opts.withDefaults()
	names, err := opts.FS.List(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("metalog: export tables of %s: %w", dir, err)
	}
	s := newExporter(opts)
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		// A table that is being written gets another name by its content once it is whole: the partial copy is removed like any table that no list names.
		f, err := s.storeFile(ctx, dir, name)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, io.EOF): // removed by a compaction
			continue
		case err != nil:
			return tables, bytes, fmt.Errorf("metalog: export table %s of %s: %w", name, dir, err)
		}
		tables++
		bytes += int64(f.Size) //nolint:gosec // of a file
	}
	return tables, bytes, nil
}

// newExporter returns what stores files of a folder without an engine.
func newExporter(opts Options) *snapshotter {
	e := &Engine{opts: opts, replica: &replica{}} // replicas have the metrics of snapshots; nobody sees these
	e.metrics = newMetrics(e)
	return newSnapshotter(e)
}

// nextSnapshot returns the number after that of every snapshot in the store.
func nextSnapshot(ctx context.Context, opts Options) (next uint64, err error) {
	prefix := snapshotPrefix(opts.Name)
	if err := blob.CheckKey(snapshotKey(opts.Name, 0)); err != nil {
		return 0, fmt.Errorf("name %q of the engine: %w", opts.Name, err)
	}
	for info, err := range opts.Snapshots.List(ctx, prefix) {
		if err != nil {
			return 0, fmt.Errorf("list snapshots: %w", err)
		}
		seq, err := strconv.ParseUint(strings.TrimPrefix(info.Key, prefix), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s is not the name of a snapshot: %w", info.Key, err)
		}
		next = max(next, seq)
	}
	return next + 1, nil
}

// AdoptFolder makes the folder dir of an engine without a journal that of a replica, at the position of an export. From then on it opens only with a
// journal. Repeating the call is harmless.
func AdoptFolder(dir string, opts Options, at Adoption) error {
	opts = opts.withDefaults()
	err := changeFolder(dir, opts, true, func(db *pebble.DB) error {
		applied, found, err := lookUp(db, schema.MetaKey(schema.MetaApplied), schema.DecodeApplied)
		if err != nil {
			return err
		}
		if found && applied == at.applied() {
			return nil
		}
		if err := checkOwnFolder(db); err != nil {
			return err
		}
		if clock, err := readClock(db); err != nil || clock != at.Time {
			return cmp.Or(err, fmt.Errorf("its clock is %d, at its export it was %d: it was used since", clock, at.Time))
		}
		// The engine that opens it has no write-ahead log, and finds all in tables.
		return errors.Join(stageReplica(db, at, pebble.Sync), db.Flush())
	})
	if err != nil {
		return fmt.Errorf("metalog: adopt %s: %w", dir, err)
	}
	return nil
}

// BeginJournal begins the journal of an adopted folder. It does nothing if the journal was begun there before, also if it has gone on since.
func (a Adoption) BeginJournal(ctx context.Context, j journal.Journal) error {
	_, err := journal.BeginAt(ctx, j, a.Position, journal.Times{Time: a.Time, Bound: a.Time})
	lost, ok := errors.AsType[*journal.LostError](err)
	if !ok {
		return err
	}
	// Whether it continues the folder, the replica finds out when it opens that.
	if err := journal.CheckPosition(a.Position, lost.Head); err != nil || lost.Head.Snapshot < a.Seq {
		return fmt.Errorf("the journal was begun by somebody else: %w", cmp.Or(err, error(lost)))
	}
	return nil
}

// DetachFolder makes the folder dir of a replica, which must not run, that of an engine without a journal. The journal has ended with head, and the folder
// has applied all of it. Repeating the call is harmless.
func DetachFolder(dir string, opts Options, head journal.Head) error {
	opts = opts.withDefaults()
	err := changeFolder(dir, opts, true, func(db *pebble.DB) error {
		version, _, err := lookUp(db, schema.MetaKey(schema.MetaFormat), schema.DecodeNumber)
		if err != nil || !schema.IsReplica(version) {
			return err
		}
		applied, _, err := lookUp(db, schema.MetaKey(schema.MetaApplied), schema.DecodeApplied)
		if err != nil {
			return err
		}
		if at := (journal.Position{Seq: applied.Seq, Chain: applied.Chain}); at != head.Position() {
			return fmt.Errorf("it has applied entry %d with chain %v, the journal ends at entry %d with chain %v", at.Seq, at.Chain, head.Seq, head.Chain)
		}
		b := db.NewBatch()
		setNumber(b, schema.MetaFormat, schema.VersionOf(false, schema.HasStubs(version)))
		setNumber(b, schema.MetaClock, head.Bound)
		return errors.Join(b.Delete(schema.MetaKey(schema.MetaApplied), nil), b.Commit(pebble.Sync), b.Close())
	})
	if err != nil {
		return fmt.Errorf("metalog: detach %s: %w", dir, err)
	}
	return nil
}

// DetachTo ends the journal in order: no replica leads it any more, and the node of a name goes on without it. It fails as HandOver does.
func (e *Engine) DetachTo(ctx context.Context, node string) error {
	if node == "" {
		return fmt.Errorf("%w: detach to a node without a name", metalog.ErrInvalid)
	}
	return e.askHandOver(ctx, node)
}

func (a Adoption) applied() schema.Applied {
	return schema.Applied{Seq: a.Seq, Time: a.Time, Chain: a.Chain}
}

// stageReplica makes a folder's database that of a replica, in one batch.
func stageReplica(db *pebble.DB, at Adoption, sync *pebble.WriteOptions) error {
	version, _, err := lookUp(db, schema.MetaKey(schema.MetaFormat), schema.DecodeNumber)
	if err != nil {
		return err
	}
	b, key := db.NewBatch(), schema.MetaKey(schema.MetaApplied)
	setNumber(b, schema.MetaFormat, schema.VersionOf(true, schema.HasStubs(version)))
	return errors.Join(b.Set(key, schema.AppendApplied(nil, key, at.applied()), nil), b.Delete(schema.MetaKey(schema.MetaClock), nil), b.Commit(sync), b.Close())
}

// checkOwnFolder fails unless the folder is that of an engine without a journal, of a version that this build writes: who opened it last raised an
// older one.
func checkOwnFolder(db *pebble.DB) error {
	version, found, err := lookUp(db, schema.MetaKey(schema.MetaFormat), schema.DecodeNumber)
	switch {
	case err != nil:
		return err
	case !found:
		return errors.New("it holds no logs")
	case schema.IsReplica(version):
		return fmt.Errorf("%w: it belongs to a replica already", ErrReplica)
	case version != schema.Version && version != schema.StubVersion:
		return fmt.Errorf("%w: version %d, this build reads %d and %d", ErrVersion, version, schema.Version, schema.StubVersion)
	}
	return nil
}

func readClock(db *pebble.DB) (int64, error) {
	clock, found, err := lookUp(db, schema.MetaKey(schema.MetaClock), schema.DecodeNumber)
	if err == nil && !found {
		err = errors.New("it has no clock")
	}
	return clock, err
}

// changeFolder runs a function on the database of a folder that no engine uses. A failed write is an error, also where Pebble would try again.
func changeFolder(dir string, opts Options, wal bool, change func(*pebble.DB) error) (err error) {
	if _, err := opts.FS.Stat(dir); err != nil {
		return err
	}
	stop := durable.NewFailStopFS(opts.FS)
	o := pebbleOptions(&opts)
	o.FS, o.Logger, o.DisableWAL, o.ErrorIfNotExists = stop, quietLogger{stop}, !wal, true
	db, err := pebble.Open(dir, o)
	if err != nil {
		return cmp.Or(stop.Err(), err)
	}
	err = change(db)
	return errors.Join(cmp.Or(stop.Err(), err), db.Close(), stop.Err())
}
