package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// copyName is the subfolder with the copy of the folder that WithCopy makes.
const copyName = "copy"

// copyTimeout bounds how long it takes to make a copy, which needs a leader of the journal and a flush.
const copyTimeout = time.Minute

// ErrCopying means that another copy of the folder is in use.
var ErrCopying = errors.New("metalog: a copy of the folder is in use already")

// WithCopy makes a copy of the folder that has everything acknowledged before the call, and calls use with its path while it exists; calls of the engine go on
// meanwhile. Tables are linked, not copied. Every record that is not in the copy has a persisted time of at least watermark, in Unix microseconds. [OpenCopy]
// reads the copy. A replica's may vanish while it is used, when a snapshot replaces the folder: use then meets files that do not exist.
func (e *Engine) WithCopy(ctx context.Context, use func(dir string, watermark int64) error) (err error) {
	if !e.copying.TryLock() {
		return ErrCopying
	}
	defer e.copying.Unlock()
	soon, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	// The barrier of a read: a replica has applied all that was acknowledged before.
	states, err := e.Tail(soon, []record.ShardID{0})
	if err != nil {
		return fmt.Errorf("metalog: copy %s: %w", e.dir, err)
	}
	dir := e.guard.PathJoin(e.dir, copyName)
	if err := e.opts.FS.RemoveAll(dir); err != nil {
		return fmt.Errorf("metalog: copy %s: %w", e.dir, err)
	}
	defer func() { err = errors.Join(err, e.opts.FS.RemoveAll(dir)) }()
	if err := e.copyFolder(soon, dir); err != nil {
		return fmt.Errorf("metalog: copy %s: %w", e.dir, err)
	}
	return use(dir, states[0].Watermark)
}

// copyFolder links the folder's tables into dir, and copies the rest. The folder is not replaced meanwhile.
func (e *Engine) copyFolder(ctx context.Context, dir string) error {
	if err := e.enterCall(); err != nil {
		return err
	}
	defer e.leaveCall()
	// What is in memory is in a write-ahead log as well, which a replica does not have, and which would be copied.
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.calls.Draining():
		return metalog.ErrClosed
	case <-e.leaving():
		return e.closingError()
	case <-e.failed:
		return e.failedError()
	}
	made := make(chan error, 1)
	go func() { made <- e.db.Checkpoint(dir) }()
	select {
	case err = <-made:
		return err
	case <-e.failed: // Pebble may never return; nobody touches it any more
		return e.failedError()
	}
}

// Copy is the folder of an engine or of a replica that nobody changes any more, for reading. It is for one goroutine.
type Copy struct {
	db       *pebble.DB
	boundary int64
	clock    int64
	retired  categorySet
}

// copyCache is the size of the cache of a Copy.
const copyCache = 32 << 20

// OpenCopy opens the folder dir, of which it uses FS alone of opts. It fails with ErrVersion when a newer build wrote it.
func OpenCopy(dir string, opts Options) (_ *Copy, err error) {
	opts = opts.withDefaults()
	o := pebbleOptions(&opts)
	cache := pebble.NewCache(copyCache)
	defer cache.Unref()
	o.Cache, o.Logger, o.ReadOnly = cache, copyLogger{}, true
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("metalog: open the copy %s: %w", dir, err)
	}
	c := &Copy{db: db}
	if err := c.loadMarks(); err != nil {
		return nil, errors.Join(fmt.Errorf("metalog: open the copy %s: %w", dir, err), db.Close())
	}
	return c, nil
}

// loadMarks reads what the folder says of itself.
func (c *Copy) loadMarks() error {
	version, found, err := lookUp(c.db, schema.MetaKey(schema.MetaFormat), schema.DecodeNumber)
	switch {
	case err != nil:
		return err
	case !found:
		return errors.New("it holds no logs")
	case version > schema.ReplicaVersion:
		return fmt.Errorf("%w: version %d, this build reads %d", ErrVersion, version, schema.ReplicaVersion)
	case version < schema.OldestVersion:
		return fmt.Errorf("unsupported format version %d", version)
	}
	if c.boundary, _, err = lookUp(c.db, schema.MetaKey(schema.MetaBoundary), schema.DecodeNumber); err != nil {
		return err
	}
	if c.clock, _, err = lookUp(c.db, schema.MetaKey(schema.MetaClock), schema.DecodeNumber); err != nil {
		return err
	}
	applied, _, err := lookUp(c.db, schema.MetaKey(schema.MetaApplied), schema.DecodeApplied)
	if err != nil {
		return err
	}
	c.clock = max(c.clock, applied.Time)
	c.retired, err = loadRetired(c.db)
	return err
}

// Close closes the folder.
func (c *Copy) Close() error { return c.db.Close() }

// Boundary returns the time below which no blob can be committed any more; 0 if there is none.
func (c *Copy) Boundary() int64 { return c.boundary }

// Clock returns a time that is not below that of any record.
func (c *Copy) Clock() int64 { return c.clock }

// IsRetired reports whether a category is retired.
func (c *Copy) IsRetired(category uint32) bool { return c.retired.holds(category) }

// Retired calls fn with the runs of retired categories, each from first to last inclusive.
func (c *Copy) Retired(fn func(first, last uint32)) {
	for _, run := range c.retired {
		fn(run.first, run.last)
	}
}

// State returns the state of a shard. Its watermark is not set.
func (c *Copy) State(id record.ShardID) (metalog.State, bool, error) {
	st, found, err := lookUp(c.db, schema.AppendStateKey(nil, id), schema.DecodeState)
	if err != nil {
		return metalog.State{}, false, readError(id, 0, err)
	}
	return publicState(id, st, 0), found, nil
}

// States calls fn with the state of every shard, in order, until it fails.
func (c *Copy) States(ctx context.Context, fn func(metalog.State) error) error {
	for it, err := range keysBetween(c.db, []byte{byte(schema.KindState)}, []byte{byte(schema.KindState) + 1}, (*pebble.Iterator).Next) {
		if err != nil {
			return err
		}
		id, err := schema.StateKeyShard(it.Key())
		if err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		var st schema.State
		if err == nil {
			st, err = schema.DecodeState(it.Key(), value)
		}
		if err != nil {
			return readError(id, 0, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(publicState(id, st, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Record returns the record at an LSN of a shard; nil if there is none.
func (c *Copy) Record(id record.ShardID, lsn record.LSN) (data []byte, err error) {
	data, _, err = lookUp(c.db, schema.AppendRecordKey(nil, id, lsn), func(key, value []byte) ([]byte, error) {
		_, data, err := schema.Record(key, value)
		return append([]byte(nil), data...), err
	})
	if err != nil {
		return nil, readError(id, lsn, err)
	}
	return data, nil
}

// Records calls fn with the records [from, to) of a shard, in order, until it fails. Data is valid during the call. A missing record is damage.
func (c *Copy) Records(ctx context.Context, id record.ShardID, from, to record.LSN, fn func(lsn record.LSN, at int64, data []byte) error) (err error) {
	if from >= to {
		return nil
	}
	r := recordReader{db: c.db}
	defer func() { err = errors.Join(err, r.close()) }()
	for lsn := from; lsn < to; lsn++ {
		at, data, err := r.readRecord(id, lsn, lsn == from)
		if errors.Is(err, errMissing) {
			err = &metalog.CorruptError{Shard: id, LSN: lsn, Detail: "it is not there"}
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := fn(lsn, at, data); err != nil {
			return err
		}
	}
	return nil
}

// Producers calls fn with a shard's states of producers, and the LSN and the time of the newest record of each, until it fails.
func (c *Copy) Producers(ctx context.Context, id record.ShardID, fn func(p metalog.ProducerState, lsn record.LSN, at int64) error) error {
	low := schema.AppendProducerKey(nil, id, 0)
	for it, err := range keysBetween(c.db, low, schema.AppendProducerKey(nil, id+1, 0), (*pebble.Iterator).Next) {
		if err != nil {
			return err
		}
		value, err := it.ValueAndErr()
		var p schema.Producer
		if err == nil {
			p, err = schema.DecodeProducer(it.Key(), value)
		}
		if err != nil {
			return readError(id, 0, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		producer, err := schema.ProducerKeyID(it.Key())
		if err != nil {
			return readError(id, 0, err)
		}
		if err := fn(metalog.ProducerState{Producer: producer, Epoch: p.Epoch, Next: p.Next}, p.LSN, p.Time); err != nil {
			return err
		}
	}
	return nil
}

// Producer returns a shard's state of a producer; it is zero if the producer is not known.
func (c *Copy) Producer(id record.ShardID, producer uint64) (metalog.ProducerState, error) {
	p, found, err := lookUp(c.db, schema.AppendProducerKey(nil, id, producer), schema.DecodeProducer)
	switch {
	case err != nil:
		return metalog.ProducerState{}, readError(id, 0, err)
	case !found:
		return metalog.ProducerState{}, nil
	}
	return metalog.ProducerState{Producer: producer, Epoch: p.Epoch, Next: p.Next}, nil
}

// copyLogger discards Pebble's messages. Errors of reading come from the calls.
type copyLogger struct{}

func (copyLogger) Infof(string, ...any)  {}
func (copyLogger) Errorf(string, ...any) {}
func (copyLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("metalog: a copy: "+format, args...))
}
