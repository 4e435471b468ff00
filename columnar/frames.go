package columnar

import (
	"encoding/binary"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/internal/format/record"
)

// Names of the columns of [Schema]. Names of built-in columns begin with an underscore; a category's own columns must not.
const (
	ColumnTime      = "_time"
	ColumnPersisted = "_persisted"
	ColumnKey       = "_key"
	ColumnShard     = "_shard"
	ColumnOffset    = "_offset"
	ColumnPayload   = "payload"
)

// Indices of the columns in [Schema].
const (
	indexTime      = 0
	indexPersisted = 1
	indexKey       = 2
	indexShard     = 3
	indexOffset    = 4
	indexPayload   = 5
	numColumns     = 6
)

// offsetBits is the width of the message index in an [Offset]. It holds more messages than fit in a payload, which has at most 80
// MiB and at least one byte per message.
const offsetBits = 27

// MaxOffsetLSN is the highest LSN that fits in an [Offset].
const MaxOffsetLSN record.LSN = 1<<(64-offsetBits) - 1

var timestampType = &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}

var schema = arrow.NewSchema([]arrow.Field{
	indexTime:      {Name: ColumnTime, Type: timestampType},
	indexPersisted: {Name: ColumnPersisted, Type: timestampType, Nullable: true},
	indexKey:       {Name: ColumnKey, Type: arrow.BinaryTypes.Binary, Nullable: true},
	indexShard:     {Name: ColumnShard, Type: arrow.PrimitiveTypes.Uint64, Nullable: true},
	indexOffset:    {Name: ColumnOffset, Type: arrow.PrimitiveTypes.Uint64},
	indexPayload:   {Name: ColumnPayload, Type: arrow.BinaryTypes.Binary},
}, nil)

// Schema is the schema of the batches of [FromFrames]:
//
//	_time       timestamp[us, UTC]            event time
//	_persisted  timestamp[us, UTC], nullable  when the pointer to the payload was committed
//	_key        binary, nullable              null for a message without a key
//	_shard      uint64, nullable              physical shard
//	_offset     uint64                        place in the physical shard, see [Offset]
//	payload     binary
func Schema() *arrow.Schema { return schema }

// Offset returns the position of a message in its physical shard as one increasing number. The upper 37 bits hold the LSN of the
// pointer to its payload; the lower 27 bits hold the message's index in the payload. An unknown LSN is passed as 0.
func Offset(lsn record.LSN, index int) uint64 { return uint64(lsn)<<offsetBits | uint64(index) }

// SplitOffset is the inverse of [Offset].
func SplitOffset(offset uint64) (lsn record.LSN, index int) {
	return record.LSN(offset >> offsetBits), int(offset & (1<<offsetBits - 1))
}

// Meta holds the properties of a payload that only its pointer knows. A reader that has only the payload (the read proxy) leaves
// it zero: then _shard and _persisted are null, and _offset counts from 0.
type Meta struct {
	Shard     record.ShardID
	LSN       record.LSN
	Persisted int64 // Unix microseconds
	// Index is the payload index of the first message of the frames. It is nonzero if the frames are only a part of the payload,
	// between Arrow frames.
	Index int
}

// FromFrames makes one batch of the messages of a payload, which is a sequence of frames. The batch shares no memory with
// payload. The caller releases it.
//
// Errors: those of record.Decoder for damage, [ErrArrowFrame] if a frame contains a batch, and [ErrTooLarge] for more than
// [MaxRows] messages or an LSN over [MaxOffsetLSN].
func FromFrames(payload []byte, meta Meta) (arrow.RecordBatch, error) {
	rows, bytes := 0, 0
	for f, err := range record.Split(payload) {
		if err != nil {
			return nil, err
		}
		if f.Encoding != record.EncodingMessages {
			return nil, ErrArrowFrame
		}
		rows += f.Count
		bytes += f.BodyLen()
	}
	if rows > MaxRows || bytes > math.MaxInt32 || meta.LSN > MaxOffsetLSN {
		return nil, tooLargeError("%d messages of %d bytes at LSN %d", rows, bytes, meta.LSN)
	}
	b := newBatchBuilder(rows, bytes, meta)
	var (
		d record.Decoder
		r record.Record
	)
	for f, err := range record.Split(payload) {
		if err != nil {
			return nil, err
		}
		if _, err := d.Reset(f.Bytes); err != nil {
			return nil, err
		}
		for d.Next(&r) {
			b.addRecord(&r)
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
	}
	return b.buildBatch(), nil
}

// batchBuilder fills the buffers of a batch with a known number of rows. Arrow's builders take twice the time, because they check
// for capacity and nulls at every value.
type batchBuilder struct {
	meta      Meta
	rows      int
	row       int
	nulls     int
	time      []byte
	offset    []byte
	key       binaryBuffers
	keyValid  []byte
	payload   binaryBuffers
	persisted []byte
	shard     []byte
}

// binaryBuffers holds the buffers of a binary column.
type binaryBuffers struct {
	offsets []byte
	values  []byte
}

func (v *binaryBuffers) addValue(row int, b []byte) {
	v.values = append(v.values, b...)
	binary.LittleEndian.PutUint32(v.offsets[4*row+4:], uint32(len(v.values)))
}

func newBatchBuilder(rows, bytes int, meta Meta) *batchBuilder {
	b := &batchBuilder{
		meta: meta, rows: rows,
		time:     make([]byte, 8*rows),
		offset:   make([]byte, 8*rows),
		key:      binaryBuffers{offsets: make([]byte, 4*rows+4)},
		keyValid: make([]byte, (rows+7)/8),
		payload:  binaryBuffers{offsets: make([]byte, 4*rows+4), values: make([]byte, 0, bytes)},
	}
	b.persisted = constantColumn(rows, uint64(meta.Persisted))
	b.shard = constantColumn(rows, uint64(meta.Shard))
	return b
}

// constantColumn returns the buffer of a column with one repeated value.
func constantColumn(rows int, v uint64) []byte {
	b := make([]byte, 8*rows)
	for i := 0; v != 0 && i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], v)
	}
	return b
}

func (b *batchBuilder) addRecord(r *record.Record) {
	binary.LittleEndian.PutUint64(b.time[8*b.row:], uint64(r.Time))
	binary.LittleEndian.PutUint64(b.offset[8*b.row:], Offset(b.meta.LSN, b.meta.Index+b.row))
	if r.HasKey {
		b.keyValid[b.row/8] |= 1 << (b.row % 8)
	} else {
		b.nulls++
	}
	b.key.addValue(b.row, r.Key)
	b.payload.addValue(b.row, r.Payload)
	b.row++
}

func (b *batchBuilder) buildBatch() arrow.RecordBatch {
	var nothing []byte // no bitmap: every value is valid
	unknown := func(known bool) ([]byte, int) {
		if known {
			return nothing, 0
		}
		return make([]byte, (b.rows+7)/8), b.rows
	}
	cols := make([]arrow.Array, numColumns)
	column := func(i, nulls int, buffers ...[]byte) {
		wrapped := make([]*memory.Buffer, len(buffers))
		for j, buf := range buffers {
			if buf != nil {
				wrapped[j] = memory.NewBufferBytes(buf)
			}
		}
		data := array.NewData(schema.Field(i).Type, b.rows, wrapped, nil, nulls, 0)
		defer data.Release()
		cols[i] = array.MakeFromData(data)
	}
	column(indexTime, 0, nothing, b.time)
	valid, nulls := unknown(b.meta.Persisted != 0)
	column(indexPersisted, nulls, valid, b.persisted)
	if b.nulls == 0 {
		b.keyValid = nil
	}
	column(indexKey, b.nulls, b.keyValid, b.key.offsets, b.key.values)
	valid, nulls = unknown(b.meta.Shard != 0)
	column(indexShard, nulls, valid, b.shard)
	column(indexOffset, 0, nothing, b.offset)
	column(indexPayload, 0, nothing, b.payload.offsets, b.payload.values)
	rec := array.NewRecordBatch(schema, cols, int64(b.rows))
	for _, c := range cols {
		c.Release()
	}
	return rec
}
