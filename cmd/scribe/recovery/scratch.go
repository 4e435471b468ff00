package recovery

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

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
	batch *pebble.Batch
	// generation counts the scans. Rows that the current scan has not marked are of deleted blobs.
	generation uint32
}

type scratchMeta struct {
	Version    int    `json:"version"`
	Source     string `json:"source"`
	Generation uint32 `json:"generation"`
}

func openScratch(dir, source string) (*scratchDB, error) {
	o := &pebble.Options{
		Logger: silentLogger{}, MemTableSize: 16 << 20, MemTableStopWritesThreshold: 4, L0CompactionThreshold: 4, L0StopWritesThreshold: 1000,
		FormatMajorVersion: pebble.FormatTableFormatV6,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	cache := pebble.NewCache(32 << 20)
	defer cache.Unref()
	o.Cache = cache
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, fmt.Errorf("recovery: scratch database %s: %w; it can be deleted", dir, err)
	}
	s := &scratchDB{db: db, batch: db.NewBatch()}
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
	return s.db.Set([]byte{keyMeta}, value, pebble.Sync)
}

func (s *scratchDB) close() error { return errors.Join(s.batch.Close(), s.db.Close()) }

// getCopy returns a copy of a value; nil if there is none.
func (s *scratchDB) getCopy(key []byte) ([]byte, error) {
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

// flushBatch writes the batch when it is large, or always if all is set.
func (s *scratchDB) flushBatch(all bool) error {
	const enough = 1 << 20
	if s.batch.Empty() || !all && s.batch.Len() < enough {
		return nil
	}
	if err := s.batch.Commit(pebble.NoSync); err != nil {
		return err
	}
	err := s.batch.Close()
	s.batch = s.db.NewBatch()
	return err
}

// scanRows yields the rows of a kind whose keys begin with prefix, in order. Key and value are valid until the next row.
func (s *scratchDB) scanRows(ctx context.Context, prefix ...byte) iter.Seq2[scratchRow, error] {
	return func(yield func(scratchRow, error) bool) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: keyAfter(prefix)})
		if err != nil {
			yield(scratchRow{}, err)
			return
		}
		for ok := it.First(); ok; ok = it.Next() {
			value, verr := it.ValueAndErr()
			if verr = cmp.Or(verr, ctx.Err()); verr != nil || !yield(scratchRow{it.Key(), value}, nil) {
				err = verr
				break
			}
		}
		if err = errors.Join(err, it.Error(), it.Close()); err != nil {
			yield(scratchRow{}, err)
		}
	}
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
)

// blobRow is the row of a blob.
type blobRow struct {
	generation uint32
	status     readStatus
	created    int64
	size       int64
	entries    uint32
	run, build uint64
}

const blobRowLen = 4 + 1 + 8 + 8 + 4 + 8 + 8

func blobKey(class uint32, id pointer.BlobID) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{keyBlob}, class), id[:]...)
}

func (b *blobRow) encodeRow() []byte {
	v := binary.BigEndian.AppendUint32(make([]byte, 0, blobRowLen), b.generation)
	v = append(v, byte(b.status))
	v = binary.BigEndian.AppendUint64(v, uint64(b.created))
	v = binary.BigEndian.AppendUint64(v, uint64(b.size))
	v = binary.BigEndian.AppendUint32(v, b.entries)
	v = binary.BigEndian.AppendUint64(v, b.run)
	return binary.BigEndian.AppendUint64(v, b.build)
}

func decodeBlobRow(v []byte) (b blobRow, err error) {
	if len(v) != blobRowLen {
		return b, errScratch
	}
	b.generation, b.status = binary.BigEndian.Uint32(v), readStatus(v[4])
	b.created, b.size = int64(binary.BigEndian.Uint64(v[5:])), int64(binary.BigEndian.Uint64(v[13:]))
	b.entries = binary.BigEndian.Uint32(v[21:])
	b.run, b.build = binary.BigEndian.Uint64(v[25:]), binary.BigEndian.Uint64(v[33:])
	return b, nil
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

func appendEntry(dst []byte, e *layout.Entry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Start))
	flag := byte(0)
	if e.Predicted {
		flag = 1
	}
	return pointer.Append(append(dst, flag), &e.Pointer)
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

// eachShard yields the shards that have entries, in order.
func (s *scratchDB) eachShard(ctx context.Context) iter.Seq2[record.ShardID, error] {
	return func(yield func(record.ShardID, error) bool) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyEntry}, UpperBound: []byte{keyEntry + 1}})
		if err != nil {
			yield(0, err)
			return
		}
		for ok := it.First(); ok; {
			if len(it.Key()) != entryKeyLen {
				err = errScratch
				break
			}
			shard := record.ShardID(binary.BigEndian.Uint64(it.Key()[1:]))
			if err = ctx.Err(); err != nil || !yield(shard, nil) {
				break
			}
			next := keyAfter(shardPrefix(shard))
			if next == nil {
				break
			}
			ok = it.SeekGE(next)
		}
		if err = errors.Join(err, it.Error(), it.Close()); err != nil {
			yield(0, err)
		}
	}
}

// claimsByPosition yields the claims to each LSN of a shard, in order. They are valid until the next LSN, except for their data,
// which the caller owns.
func (s *scratchDB) claimsByPosition(ctx context.Context, shard record.ShardID) iter.Seq2[[]positionClaim, error] {
	return func(yield func([]positionClaim, error) bool) {
		var group []positionClaim
		for r, err := range s.scanRows(ctx, shardPrefix(shard)...) {
			var c positionClaim
			if err == nil {
				c, err = decodeEntry(r)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			c.data = append([]byte(nil), c.data...)
			if len(group) > 0 && group[0].lsn != c.lsn {
				if !yield(group, nil) {
					return
				}
				group = group[:0]
			}
			group = append(group, c)
		}
		if len(group) > 0 {
			yield(group, nil)
		}
	}
}

// silentLogger discards Pebble's log.
type silentLogger struct{}

func (silentLogger) Infof(string, ...any)  {}
func (silentLogger) Errorf(string, ...any) {}
func (silentLogger) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf("recovery: scratch database: "+format, args...))
}
