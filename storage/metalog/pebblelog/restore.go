package pebblelog

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/base/durable"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// restoreBatch is how many bytes a Restorer gathers before it writes them.
const restoreBatch = 4 << 20

// Restorer writes a folder of logs with known content: records keep their LSNs and times, shards their epochs. Nothing is synced
// before Finish, which makes the folder valid for Open; until then Open refuses it as a foreign folder. A Restorer is for one
// goroutine.
type Restorer struct {
	dir     string
	db      *pebble.DB
	fs      *durable.FailStopFS
	batch   *pebble.Batch
	retired categorySet
	key     []byte
	value   []byte
}

// NewRestorer makes the folder dir, which must be empty or not exist. It uses FS and MemTableBytes of opts.
func NewRestorer(dir string, opts Options) (*Restorer, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	if names, err := opts.FS.List(dir); err == nil && len(names) > 0 {
		return nil, fmt.Errorf("metalog: folder %s is not empty: restore logs into a new one", dir)
	}
	if err := opts.FS.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("metalog: create folder %s: %w", dir, err)
	}
	o := pebbleOptions(&opts)
	stop := durable.NewFailStopFS(opts.FS)
	o.FS, o.Logger = stop, quietLogger{stop}
	// An unfinished restore is started again, so a write-ahead log is of no use.
	o.DisableWAL, o.ErrorIfExists = true, true
	db, err := pebble.Open(dir, o)
	if full := stop.Err(); err != nil || full != nil {
		if err == nil {
			_ = db.Close() // the first error counts
		}
		return nil, fmt.Errorf("metalog: make folder %s: %w", dir, cmp.Or(full, err))
	}
	return &Restorer{dir: dir, db: db, fs: stop, batch: db.NewBatch()}, nil
}

// Record adds the record of a shard at an LSN. The data is copied.
func (r *Restorer) Record(s record.ShardID, lsn record.LSN, time int64, data []byte) error {
	if lsn < record.FirstLSN || len(data) == 0 || len(data) > metalog.MaxRecord {
		return fmt.Errorf("%w: shard %v: invalid record of %d bytes at LSN %d", metalog.ErrInvalid, s, len(data), lsn)
	}
	r.key = schema.AppendRecordKey(r.key[:0], s, lsn)
	if n := schema.RecordOverhead + len(data); cap(r.value) < n {
		r.value = make([]byte, n)
	} else {
		r.value = r.value[:n]
	}
	schema.PutRecord(r.value, r.key, time, data)
	return r.setValue()
}

// Producer sets a shard's state of a producer as of the record at an LSN. It replaces an earlier call for the same producer.
func (r *Restorer) Producer(s record.ShardID, p metalog.ProducerState, lsn record.LSN, time int64) error {
	if !p.Known() || lsn < record.FirstLSN {
		return fmt.Errorf("%w: shard %v: producer %d expects %d at LSN %d", metalog.ErrInvalid, s, p.Producer, p.Next, lsn)
	}
	r.key = schema.AppendProducerKey(r.key[:0], s, p.Producer)
	r.value = schema.AppendProducer(r.value[:0], r.key, schema.Producer{Epoch: p.Epoch, Next: p.Next, LSN: lsn, Time: time})
	return r.setValue()
}

// Shard adds the state of a shard; its watermark is not used. A record must exist at every LSN from FirstLSN to NextLSN - 1.
func (r *Restorer) Shard(st metalog.State) error {
	if st.FirstLSN < record.FirstLSN || st.NextLSN < st.FirstLSN || st.Epoch == 0 || st.Origin > st.FirstLSN {
		return fmt.Errorf("%w: shard %v from LSN %d to %d in epoch %d", metalog.ErrInvalid, st.Shard, st.FirstLSN, st.NextLSN, st.Epoch)
	}
	r.key = schema.AppendStateKey(r.key[:0], st.Shard)
	r.value = schema.AppendState(r.value[:0], r.key, schema.State{
		First: st.FirstLSN, Next: st.NextLSN, Epoch: st.Epoch, LastTime: st.LastTime, Sealed: st.Sealed, Origin: st.Origin,
	})
	return r.setValue()
}

// Retire retires a category: it accepts no more records.
func (r *Restorer) Retire(category uint32) {
	if !r.retired.holds(category) {
		r.retired.addCategory(category)
	}
}

func (r *Restorer) setValue() error {
	if err := r.batch.Set(r.key, r.value, nil); err != nil {
		return err
	}
	if r.batch.Len() < restoreBatch {
		return nil
	}
	return r.writeBatch()
}

func (r *Restorer) writeBatch() error {
	if err := r.batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("metalog: write to %s: %w", r.dir, err)
	}
	err := r.batch.Close()
	r.batch = r.db.NewBatch()
	return errors.Join(err, r.writeError())
}

// writeError returns the error of the first write that failed; nil if there is none.
func (r *Restorer) writeError() error {
	if err := r.fs.Err(); err != nil {
		return fmt.Errorf("metalog: write to %s: %w", r.dir, err)
	}
	return nil
}

// Finish makes everything durable and closes the folder. boundary is the time below which blobs may be deleted. No later record
// or watermark is below clock. Both are in Unix microseconds. Shards that were not added begin at origin.
func (r *Restorer) Finish(boundary, clock int64, origin Origin) (err error) {
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, run := range r.retired {
		r.key = schema.RetiredKey(run.first)
		r.value = schema.AppendRetired(r.value[:0], r.key, run.last)
		if err := r.setValue(); err != nil {
			return err
		}
	}
	if boundary != 0 {
		setNumber(r.batch, schema.MetaBoundary, boundary)
	}
	setNumber(r.batch, schema.MetaClock, clock)
	if origin.End != 0 {
		setNumber(r.batch, schema.MetaOrigin, int64(origin.LSN))    //nolint:gosec // read back as unsigned
		setNumber(r.batch, schema.MetaOriginEnd, int64(origin.End)) //nolint:gosec // at most 2^32
	}
	// Tables are synced when they are written. The version is written last: it marks the folder as complete.
	if err := r.flushBatch(); err != nil {
		return err
	}
	setNumber(r.batch, schema.MetaFormat, schema.Version)
	return r.flushBatch()
}

// flushBatch makes everything durable.
func (r *Restorer) flushBatch() error {
	if err := r.writeBatch(); err != nil {
		return err
	}
	if err := r.db.Flush(); err != nil {
		return fmt.Errorf("metalog: write to %s: %w", r.dir, err)
	}
	return r.writeError()
}

// Close abandons an unfinished restore. Repeating it is harmless.
func (r *Restorer) Close() error {
	if r.db == nil {
		return nil
	}
	err := errors.Join(r.batch.Close(), r.db.Close())
	r.db, r.batch = nil, nil
	return err
}

// quietLogger discards Pebble's messages. After a failed write Pebble misses what was dropped, which the Restorer reports; anything else
// that is fatal ends the process, since nothing written can be relied on.
type quietLogger struct{ fs *durable.FailStopFS }

func (quietLogger) Infof(string, ...any)  {}
func (quietLogger) Errorf(string, ...any) {}
func (l quietLogger) Fatalf(format string, args ...any) {
	if l.fs.Err() == nil {
		panic(fmt.Sprintf("metalog: restore: "+format, args...))
	}
}
