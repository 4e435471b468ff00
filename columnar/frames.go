package columnar

import (
	"math"
	"slices"

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
	meta         Meta
	rows         int
	row          int
	nulls        int
	time, offset []uint64
	key, payload binaryValues
	keyValid     []byte
}

// binaryValues holds the values of a binary column.
type binaryValues struct {
	offsets []int32
	data    []byte
}

func (v *binaryValues) addValue(row int, b []byte) {
	v.data = append(v.data, b...)
	v.offsets[row+1] = int32(len(v.data))
}

func newBatchBuilder(rows, bytes int, meta Meta) *batchBuilder {
	return &batchBuilder{
		meta: meta, rows: rows,
		time:     make([]uint64, rows),
		offset:   make([]uint64, rows),
		key:      binaryValues{offsets: make([]int32, rows+1)},
		keyValid: make([]byte, (rows+7)/8),
		payload:  binaryValues{offsets: make([]int32, rows+1), data: make([]byte, 0, bytes)},
	}
}

func (b *batchBuilder) addRecord(r *record.Record) {
	b.time[b.row] = uint64(r.Time)
	b.offset[b.row] = Offset(b.meta.LSN, b.meta.Index+b.row)
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
	cols := make([]arrow.Array, numColumns)
	column := func(i, nulls int, valid []byte, values ...[]byte) {
		buffers := make([]*memory.Buffer, 1, 1+len(values)) // no bitmap: every value is valid
		if nulls > 0 {
			buffers[0] = memory.NewBufferBytes(valid)
		}
		for _, v := range values {
			buffers = append(buffers, memory.NewBufferBytes(v))
		}
		data := array.NewData(schema.Field(i).Type, b.rows, buffers, nil, nulls, 0)
		defer data.Release()
		cols[i] = array.MakeFromData(data)
	}
	// constant adds a column with one value, which is not known if it is 0.
	constant := func(i int, v uint64) {
		nulls := 0
		if v == 0 {
			nulls = b.rows
		}
		column(i, nulls, make([]byte, (nulls+7)/8), arrow.GetBytes(slices.Repeat([]uint64{v}, b.rows)))
	}
	column(indexTime, 0, nil, arrow.GetBytes(b.time))
	constant(indexPersisted, uint64(b.meta.Persisted))
	column(indexKey, b.nulls, b.keyValid, arrow.GetBytes(b.key.offsets), b.key.data)
	constant(indexShard, uint64(b.meta.Shard))
	column(indexOffset, 0, nil, arrow.GetBytes(b.offset))
	column(indexPayload, 0, nil, arrow.GetBytes(b.payload.offsets), b.payload.data)
	rec := array.NewRecordBatch(schema, cols, int64(b.rows))
	for _, c := range cols {
		c.Release()
	}
	return rec
}
