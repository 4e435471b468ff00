package batcher

import (
	"sync/atomic"
	"time"

	"scribe/batcher/arena"
	"scribe/batcher/logqueue"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// frameOutcome is what has been decided about a frame.
type frameOutcome uint8

const (
	// frameKept: the frame is part of what is stored.
	frameKept frameOutcome = 0
	// frameStored: all its sequences were stored by an earlier flush. It is acknowledged as a duplicate whatever becomes of this one.
	frameStored frameOutcome = 1
	// frameRepeated: all its sequences are those of frames before it in this flush. It shares their fate.
	frameRepeated frameOutcome = 2
	// frameRefused: its frame.fault says why.
	frameRefused frameOutcome = 3
	// frameDropped: a frame before it of the same request and shard was not stored. Its frame.fault says so.
	frameDropped frameOutcome = 4
)

// frame is one frame in memory. Its bytes are in the memory of its span, after those of the frames before it.
type frame struct {
	size     uint32
	messages uint32
	baseTime int64

	producer  uint64
	first     uint64 // first sequence
	epoch     uint32
	sequenced bool

	outcome frameOutcome
	fault   *scribev1.ErrorInfo // of a frame that is refused or dropped
}

// lastSequence is the sequence of the frame's last message.
func (f *frame) lastSequence() uint64 { return f.first + uint64(f.messages) - 1 }

// continues reports whether f continues the sequences of before.
func (f *frame) continues(before *frame) bool {
	return f.producer == before.producer && f.epoch == before.epoch && f.first == before.lastSequence()+1
}

// frameSpan is a run of frames of one request and one target, adjacent in memory. It is the unit in which frames are accumulated, so
// that the cost of bookkeeping is one per run and not one per frame.
type frameSpan struct {
	sub    *waitingRequest // who waits for the outcome; nil when nobody does
	index  int             // of the first frame in the request
	frames []frame
	mem    arena.Segment
	bytes  int
	runs   int // upper bound of the sequence runs in an exactly_once category; 0 in others
	// request is the number of the request that the span is of. The accumulator sets it.
	request uint64
	// chain is shared with the request's spans of the same log in other payloads; nil when there are none.
	chain *requestChain
}

// requestChain makes the frames of one shard in one request a prefix of what they were: once some of them are not stored, later ones
// are not either.
type requestChain struct {
	broken atomic.Bool
}

// logTarget is where frames go.
type logTarget struct {
	shard    record.ShardID
	category string
	class    uint32
	// exactlyOnce: sequences are checked and remembered by the metadata engine.
	exactlyOnce bool
	// bound: the logical shard has one log, whoever writes it.
	bound bool
	// settings are the category as it was looked up, for the footers of blobs; nil in tests. They do not change.
	settings *scribev1.Category
}

// logBatch is the payloads of one log: first those that wait for a flush, then one flush's part of them.
type logBatch struct {
	logTarget
	payloads []*payload
	open     *payload // the last of payloads while it takes frames; nil when the next frame begins a new one

	// Owned by the accumulator.

	account *categoryAccount
	// taken is where the flush that is being filled has the payloads; nil at all other times.
	taken *logBatch
	// stalled: no flush takes the frames at present.
	stalled bool

	// Owned by the goroutine that writes the batch's part.

	part  *flushPart
	entry logqueue.Entry
	// numbered is entry.Shifts as it was when the blob that is in the store was built.
	numbered uint64

	// corrections are the conflicts that refused frames were answered with, after what the log knows of their producers once the
	// batch is appended.
	corrections []*scribev1.SequenceConflict
	after       map[uint64]metalog.ProducerState

	// one is the memory of payloads while there is one, as there is in most batches of a flush with many categories.
	one [1]*payload
}

// payload is a run of frames of one physical shard that is compressed and read as a whole.
type payload struct {
	batch    *logBatch
	spans    []frameSpan
	since    time.Time // when its first frame came
	bytes    int
	frames   int
	messages int
	runs     int
	waiters  int // spans whose request waits for the commit

	block  *block // set when it is compressed or about to be
	offset int    // in the raw block

	// Owned by the accumulator all the time.

	// overhead is the charge for bookkeeping, stored its share of the compressed block's bytes; -1 while it is not compressed.
	overhead int64
	stored   int64

	// What follows belongs to the goroutine that writes the part.

	// ranges are what is stored of the payload: one, all of it, unless frames in it were refused.
	ranges []pointerRange
	// fault is why the payload as a whole was not stored.
	fault *scribev1.ErrorInfo

	// The memory of spans and pointer ranges while there is one.
	oneSpan  [1]frameSpan
	oneRange [1]pointerRange
}

func newLogBatch(to logTarget, t *categoryAccount) *logBatch {
	g := &logBatch{logTarget: to, account: t}
	g.payloads = g.one[:0]
	return g
}

func newPayload(g *logBatch, since time.Time) *payload {
	pl := &payload{batch: g, since: since, stored: -1}
	pl.spans, pl.ranges = pl.oneSpan[:0], pl.oneRange[:0]
	return pl
}

// flushSize is what counts towards Config.FlushBytes.
func (pl *payload) flushSize() int64 {
	if pl.stored >= 0 {
		return pl.stored
	}
	return int64(pl.bytes)
}

// memoryCharge is what the payload's category is charged for.
func (pl *payload) memoryCharge() int64 {
	if pl.stored >= 0 {
		return pl.overhead + pl.stored
	}
	return pl.overhead + 2*int64(pl.bytes)
}

// pointerRange is a run of kept frames, adjacent in a block: what one pointer points to.
type pointerRange struct {
	offset   int // in the raw block
	length   int
	frames   int
	messages int
	minTime  int64
	maxTime  int64
	runs     []pointer.Sequence

	epoch  uint64
	lsn    record.LSN
	record []byte // the encoded pointer, once the blob is built
}

// block is what is compressed as a whole: one large payload, or small ones side by side.
type block struct {
	flush    *flush // nil until a flush takes it; the accumulator's
	payloads []*payload
	raw      int

	// Owned by the compressor once it has the block: where it stands, and whether a flush waits for it.
	state  blockState
	urgent bool

	// Set by the compressor.
	codec  pointer.Codec
	stored *buffers.Buffer

	// parts counts the parts that have payloads of the block.
	parts atomic.Int32
}

// blockState is where a block stands in the compressor.
type blockState uint8

const (
	blockNew    blockState = 0 // not there yet
	blockQueued blockState = 1
	blockTaken  blockState = 2
)

// flushTrigger is why a flush was cut.
type flushTrigger uint8

const (
	triggerSize flushTrigger = iota
	triggerAge
	triggerCommit
	triggerClose
	triggerCount // their number
)

func (t flushTrigger) String() string {
	return [triggerCount]string{"size", "age", "commit", "close"}[t]
}

// flush is what is cut at once of the frames of one retention class: it becomes one blob and one transaction, unless it is divided
// (see part). The accumulator fills it; then the goroutine that writes it owns it, but for what the comments say.
type flush struct {
	ticket  uint64 // flushes are claimed in this order
	queue   *classQueue
	trigger flushTrigger
	cutAt   time.Time

	batches []*logBatch // by turn of their categories
	blocks  []*block    // of payloads that were compressed, or about to be, when it was cut
	small   []*payload  // those that were not

	flushVolume
	oldest time.Time // when its first frame came

	// Owned by the accumulator all the time.

	uncompressed int // blocks that are not compressed yet, and one until the small payloads are packed
	// attached counts the parts for which the flush counts as in flight.
	attached int

	// compressed is closed when all blocks are; claimed when the flush has its turns in the queues of its logs.
	compressed chan struct{}
	claimed    chan struct{}
	// afterClaim is claimed of the flush before. Only the channel is kept, so that the flush can be collected.
	afterClaim <-chan struct{}
}

// closedChannel is a channel that is.
var closedChannel = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func newFlush(ticket uint64, fl *classQueue, before *flush) *flush {
	f := &flush{
		ticket:       ticket,
		queue:        fl,
		uncompressed: 1,
		attached:     1,
		compressed:   make(chan struct{}),
		claimed:      make(chan struct{}),
		afterClaim:   closedChannel,
	}
	if before != nil {
		f.afterClaim = before.claimed
	}
	return f
}
