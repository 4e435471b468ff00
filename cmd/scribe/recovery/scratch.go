package recovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob/layout"
)

// scratchVersion is increased when the encodings below change. A scratch database of another version is refused, and can be
// deleted.
const scratchVersion = 1

// Kinds of keys, the first byte. All integers are big-endian.
const (
	keyMeta     = 'm' // JSON of scratchMeta
	keyBlob     = 'b' // class 4 | id 16 -> blobRow
	keyEntry    = 'e' // shard 8 | LSN 8 | epoch 8 | id 16 -> start 8 | predicted 1 | pointer
	keyRun      = 'r' // run 8 | build 8 | id 16 -> class 4 | window 8 | exceptions: build 8 | void 1
	keyOutcome  = 'v' // id 16 -> outcome 1
	keyCategory = 'c' // category 4 -> JSON of categoryRow
)

// scratchDB is the database in which the facts of footers are sorted. One goroutine writes it. A blob's row is in one batch with
// its entries, so if a crash loses writes, only the blobs whose rows are missing are read again.
type scratchDB struct {
	db    *pebble.DB
	fs    *durable.FailStopFS
	batch *pebble.Batch
	// generation counts the scans. Rows that the current scan has not marked are of deleted blobs.
	generation uint32
}

type scratchMeta struct {
	Version    int    `json:"version"`
	Source     string `json:"source"`
	Generation uint32 `json:"generation"`
}

func openScratch(fsys vfs.FS, dir, source string) (*scratchDB, error) {
	stop := durable.NewFailStopFS(fsys)
	// Without a write-ahead log a crash loses what is in memory: those blobs are read again.
	o := &pebble.Options{
		FS: stop, DisableWAL: true, Logger: silentLogger{stop}, MemTableSize: 16 << 20, MemTableStopWritesThreshold: 4, L0CompactionThreshold: 4, L0StopWritesThreshold: 1000,
		FormatMajorVersion: pebble.FormatTableFormatV6,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	cache := pebble.NewCache(32 << 20)
	defer cache.Unref()
	o.Cache = cache
	db, err := pebble.Open(dir, o)
	if full := stop.Err(); err != nil || full != nil {
		if err == nil {
			_ = db.Close() // the first error counts
		}
		return nil, fmt.Errorf("recovery: scratch database %s: %w; it can be deleted", dir, cmp.Or(full, err))
	}
	s := &scratchDB{db: db, fs: stop, batch: db.NewBatch()}
	if err := s.beginGeneration(source); err != nil {
		return nil, errors.Join(fmt.Errorf("recovery: scratch database %s: %w", dir, err), s.close())
	}
	return s, nil
}

// beginGeneration checks the version and source of the database, and starts another generation.
func (s *scratchDB) beginGeneration(source string) error {
	var meta scratchMeta
	value, err := s.getCopy([]byte{keyMeta})
	switch {
	case err != nil:
		return err
	case value != nil:
		if err := json.Unmarshal(value, &meta); err != nil {
			return fmt.Errorf("%w; it can be deleted", err)
		}
		if meta.Version != scratchVersion || meta.Source != source {
			return fmt.Errorf("it is of version %d and of %s; this is version %d and %s: delete it", meta.Version, meta.Source, scratchVersion, source)
		}
	}
	s.generation = meta.Generation + 1
	value, err = json.Marshal(scratchMeta{Version: scratchVersion, Source: source, Generation: s.generation})
	if err != nil {
		return err
	}
	return s.setRow([]byte{keyMeta}, value)
}

// close makes what was written outlive the process, for the next run.
func (s *scratchDB) close() error {
	err := s.batch.Close()
	if s.writeError() == nil {
		err = errors.Join(err, s.db.Flush())
	}
	return errors.Join(err, s.db.Close(), s.writeError())
}

// writeError returns the error of the first write that failed; nil if there is none.
func (s *scratchDB) writeError() error {
	if err := s.fs.Err(); err != nil {
		return fmt.Errorf("recovery: scratch database: %w", err)
	}
	return nil
}

// setRow writes a row at once.
func (s *scratchDB) setRow(key, value []byte) error {
	return errors.Join(s.db.Set(key, value, pebble.NoSync), s.writeError())
}

// getCopy returns a copy of a value; nil if there is none.
func (s *scratchDB) getCopy(key []byte) ([]byte, error) {
	if err := s.writeError(); err != nil {
		return nil, err
	}
	value, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := append([]byte{}, value...)
	return out, closer.Close()
}

// putRow adds a row to the batch.
func (s *scratchDB) putRow(key, value []byte) error { return s.batch.Set(key, value, nil) }

// flushBatch writes the batch.
func (s *scratchDB) flushBatch() error {
	if s.batch.Empty() {
		return nil
	}
	if err := s.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	err := s.batch.Close()
	s.batch = s.db.NewBatch()
	return errors.Join(err, s.writeError())
}

// eachRow calls fn with the rows whose keys begin with prefix, in order, until it fails. Key and value are valid during the call.
func (s *scratchDB) eachRow(ctx context.Context, prefix []byte, fn func(scratchRow) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyAfter(prefix)})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		var value []byte
		value, err = it.ValueAndErr()
		if err = cmp.Or(err, ctx.Err(), s.writeError()); err == nil {
			err = fn(scratchRow{it.Key(), value})
		}
	}
	return errors.Join(err, it.Error(), it.Close())
}

type scratchRow struct{ key, value []byte }

// keyAfter returns the first key after all keys that begin with prefix.
func keyAfter(prefix []byte) []byte {
	out := append([]byte{}, prefix...)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]++; out[i] != 0 {
			return out[:i+1]
		}
	}
	return nil
}

// readStatus is the result of reading a blob.
type readStatus byte

const (
	statusRead    readStatus = 1
	statusDamaged readStatus = 2
	statusNewer   readStatus = 3
	// statusSettled: it was not read, since a base has what it claims.
	statusSettled readStatus = 4
)

// blobRow is the row of a blob.
type blobRow struct {
	Generation uint32
	Status     readStatus
	Created    int64
	Size       int64
	Entries    uint32
	Run, Build uint64
}

const blobRowLen = 4 + 1 + 8 + 8 + 4 + 8 + 8

func blobKey(class uint32, id pointer.BlobID) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{keyBlob}, class), id[:]...)
}

// decodeBlobRow reads the row of a blob, and what stands behind it.
func decodeBlobRow(v []byte) (b blobRow, rest []byte, err error) {
	n, err := binary.Decode(v, binary.BigEndian, &b)
	if err != nil {
		return b, nil, errScratch
	}
	return b, v[n:], nil
}

var errScratch = errors.New("recovery: the scratch database is damaged: delete it")

// positionClaim is an entry of a blob: its claim to a position in a log.
type positionClaim struct {
	shard     record.ShardID
	lsn       record.LSN
	epoch     uint64
	blob      pointer.BlobID
	start     record.LSN // 0: unknown
	predicted bool
	data      []byte // the encoded pointer; valid until the next row
}

const entryKeyLen = 1 + 8 + 8 + 8 + 16

func appendEntryKey(dst []byte, e *layout.Entry, id pointer.BlobID) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, keyEntry), uint64(e.Shard))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.LSN))
	dst = binary.BigEndian.AppendUint64(dst, e.Epoch)
	return append(dst, id[:]...)
}

func encodeEntry(dst []byte, e *layout.Entry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Start))
	return pointer.Append(append(dst, boolByte(e.Predicted)), &e.Pointer)
}

func decodeEntry(r scratchRow) (c positionClaim, err error) {
	if len(r.key) != entryKeyLen || len(r.value) < 9 {
		return c, errScratch
	}
	c.shard = record.ShardID(binary.BigEndian.Uint64(r.key[1:]))
	c.lsn = record.LSN(binary.BigEndian.Uint64(r.key[9:]))
	c.epoch = binary.BigEndian.Uint64(r.key[17:])
	c.blob = pointer.BlobID(r.key[25:])
	c.start = record.LSN(binary.BigEndian.Uint64(r.value))
	c.predicted = r.value[8] != 0
	c.data = r.value[9:]
	return c, nil
}

func shardPrefix(s record.ShardID) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyEntry}, uint64(s))
}

// eachShard calls fn with the shards that have entries, in order, until it fails.
func (s *scratchDB) eachShard(ctx context.Context, fn func(record.ShardID) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyEntry}, UpperBound: []byte{keyEntry + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && err == nil; {
		if len(it.Key()) != entryKeyLen {
			err = errScratch
			break
		}
		shard := record.ShardID(binary.BigEndian.Uint64(it.Key()[1:]))
		if err = ctx.Err(); err == nil {
			err = fn(shard)
		}
		ok = it.SeekGE(keyAfter(shardPrefix(shard)))
	}
	return errors.Join(err, it.Error(), it.Close())
}

// eachPosition calls fn with the claims to each LSN of a shard, in order, until it fails. They are valid during the call, except for their
// data, which fn owns.
func (s *scratchDB) eachPosition(ctx context.Context, shard record.ShardID, fn func([]positionClaim) error) error {
	var group []positionClaim
	err := s.eachRow(ctx, shardPrefix(shard), func(r scratchRow) error {
		c, err := decodeEntry(r)
		if err != nil {
			return err
		}
		c.data = bytes.Clone(c.data)
		if len(group) > 0 && group[0].lsn != c.lsn {
			err = fn(group)
			group = group[:0]
		}
		group = append(group, c)
		return err
	})
	if err != nil || len(group) == 0 {
		return err
	}
	return fn(group)
}

// silentLogger discards Pebble's log. After a failed write Pebble misses what was dropped, which the run reports; anything else that is
// fatal ends the process.
type silentLogger struct{ fs *durable.FailStopFS }

func (silentLogger) Infof(string, ...any)  {}
func (silentLogger) Errorf(string, ...any) {}
func (l silentLogger) Fatalf(format string, args ...any) {
	if l.fs.Err() == nil {
		panic(fmt.Sprintf("recovery: scratch database: "+format, args...))
	}
}
