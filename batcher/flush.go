package batcher

import (
	"iter"
	"sync/atomic"
	"time"

	"scribe/batcher/arena"
	"scribe/batcher/logqueue"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/metalog"
)

// frameOutcome is the decision about a frame.
type frameOutcome uint8

const (
	// frameKept: the frame is stored with its part.
	frameKept frameOutcome = 0
	// frameStored: all its sequences were stored by an earlier flush. It is acknowledged as a duplicate even if this flush fails.
	frameStored frameOutcome = 1
	// frameRepeated: earlier frames of this flush have all its sequences. It shares their outcome.
	frameRepeated frameOutcome = 2
	// frameRefused: frame.fault has the reason.
	frameRefused frameOutcome = 3
	// frameDropped: an earlier frame of the same request and shard was not stored. frame.fault says so.
	frameDropped frameOutcome = 4
)

// frame describes one frame in memory. Its bytes follow those of the previous frame in the memory of its span.
type frame struct {
	size     uint32
	messages uint32
	baseTime int64

	producer  uint64
	first     uint64 // first sequence
	epoch     uint32
	sequenced bool

	outcome frameOutcome
	fault   *scribev1.ErrorInfo // the reason, if the frame is refused or dropped
}

// lastSequence returns the sequence of the frame's last message.
func (f *frame) lastSequence() uint64 { return f.first + uint64(f.messages) - 1 }

// continues reports whether f continues the sequences of before.
func (f *frame) continues(before *frame) bool {
	return f.producer == before.producer && f.epoch == before.epoch && f.first == before.lastSequence()+1
}

// frameSpan is a run of frames of one request and one target, adjacent in memory. It is the unit of accumulation, so that
// bookkeeping costs are per run and not per frame.
type frameSpan struct {
	sub    *waitingRequest // the request that waits for the outcome; nil if none does
	index  int             // of the first frame in the request
	frames []frame
	mem    arena.Segment
	bytes  int
	runs   int // upper bound of the sequence runs in an exactly_once category; 0 in others
	// request is the number of the span's request. The accumulator sets it.
	request uint64
	// chain is shared with the request's other spans of the same log; nil if nothing can depend on the span.
	chain *requestChain
	// after is the chain of the span that the first frame follows, of an earlier request; nil if it follows none.
	after *requestChain
}

// isAwaited reports whether somebody waits for the span's frames.
func (p *frameSpan) isAwaited() bool { return p.sub != nil && !p.sub.lingered }

// isBroken reports whether a frame before the span was not stored.
func (p *frameSpan) isBroken() bool {
	return p.chain != nil && p.chain.broken.Load() || p.after != nil && p.after.broken.Load()
}

// breakChain makes what comes after the span not be stored.
func (p *frameSpan) breakChain() {
	if p.chain != nil {
		p.chain.broken.Store(true)
	}
}

// requestChain ensures that the stored frames of one shard in one request, and of a producer's consecutive requests in flight, are
// a prefix: once a frame is not stored, later ones are not either.
type requestChain struct {
	broken atomic.Bool
}

// logTarget is the destination of frames: a log, with the settings of its category.
type logTarget struct {
	shard    record.ShardID
	category string
	class    uint32
	// exactlyOnce: the metadata engine checks and stores the sequences.
	exactlyOnce bool
	// bound: the logical shard has one log, at writer slot 0.
	bound bool
	// key encrypts frames of the category; nil if it is not encrypted.
	key *encryption.Key
	// settings is the category as it was looked up, for the footers of blobs; nil in tests. It is immutable.
	settings *scribev1.Category
}

// logBatch is the payloads of one log: either the pending ones, or those of one flush.
type logBatch struct {
	logTarget
	payloads []*payload
	open     *payload // the last of payloads while it takes frames; nil when the next frame begins a new one

	// Owned by the accumulator.

	account *categoryAccount
	// taken is the log's batch in the flush that is being filled; nil at all other times.
	taken *logBatch
	// stalled: flushes leave the frames out for now.
	stalled bool
	// awaited: somebody waits for frames of it.
	awaited bool

	// Owned by the goroutine that writes the batch's part.

	part  *flushPart
	entry logqueue.Entry
	// numbered is the value of entry.Shifts when positions were last assigned.
	numbered uint64

	// corrections are the conflicts in the errors of refused frames. after has the states of their producers once the batch is
	// appended.
	corrections []*scribev1.SequenceConflict
	after       map[uint64]metalog.ProducerState

	// one is the memory of payloads while it has one element, as in most batches of a flush with many categories.
	one [1]*payload
}

// payload is a run of frames of one physical shard, the unit of reading.
type payload struct {
	batch    *logBatch
	spans    []frameSpan
	since    time.Time // arrival of its first frame
	bytes    int
	frames   int
	messages int
	runs     int
	waiters  int // spans whose request waits for the commit, because somebody waits for it
	lingered int // those whose request waits, but nobody else
	// key is that of its last frame; nil if the category is not encrypted.
	key *encryption.Key

	block  *block // set once the payload is queued for compression
	offset int    // in the raw block

	// Owned by the accumulator all the time.

	// overhead is the charge for bookkeeping. stored is its share of the compressed block's bytes, -1 until the block is
	// compressed.
	overhead int64
	stored   int64

	// Owned by the goroutine that writes the part.

	// ranges are the stored parts of the payload: a single range, the whole payload, unless frames in it were refused.
	ranges []pointerRange
	// fault is the reason why no frame of the payload was stored.
	fault *scribev1.ErrorInfo

	// The memory of spans and ranges while each has one element.
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

// allFrames yields the frames of the batch, with their payloads.
func (g *logBatch) allFrames() iter.Seq2[*payload, *frame] {
	return func(yield func(*payload, *frame) bool) {
		for _, pl := range g.payloads {
			for i := range pl.spans {
				for j := range pl.spans[i].frames {
					if !yield(pl, &pl.spans[i].frames[j]) {
						return
					}
				}
			}
		}
	}
}

// allRanges yields the pointer ranges of the batch.
func (g *logBatch) allRanges() iter.Seq[*pointerRange] {
	return func(yield func(*pointerRange) bool) {
		for _, pl := range g.payloads {
			for i := range pl.ranges {
				if !yield(&pl.ranges[i]) {
					return
				}
			}
		}
	}
}

// flushSize returns the bytes that count towards Config.FlushBytes.
func (pl *payload) flushSize() int64 {
	if pl.stored >= 0 {
		return pl.stored
	}
	return int64(pl.bytes)
}

// memoryCharge returns the bytes charged to the payload's category.
func (pl *payload) memoryCharge() int64 {
	if pl.stored >= 0 {
		return pl.overhead + pl.stored
	}
	return pl.overhead + 2*int64(pl.bytes)
}

// pointerRange is a run of kept frames, adjacent in a block: the range of one pointer.
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

// block is the unit of compression: one large payload, or several small ones.
type block struct {
	flush    *flush // nil until a flush takes it; owned by the accumulator
	payloads []*payload
	raw      int

	// Owned by the compressor once the block is queued.
	state   blockState
	urgency blockUrgency

	// Set by the compressor.
	codec  pointer.Codec
	stored *buffers.Buffer // encrypted, if a payload's category is

	// parts counts the parts that have payloads of the block.
	parts atomic.Int32
}

// blockState is the state of a block in the compressor.
type blockState uint8

const (
	blockNew    blockState = 0 // not there yet
	blockQueued blockState = 1
	blockTaken  blockState = 2
)

// blockUrgency says who waits for a block. The compressor serves the most urgent first.
type blockUrgency uint8

const (
	forNobody  blockUrgency = 0
	forFlush   blockUrgency = 1
	forAwaited blockUrgency = 2 // a flush that somebody waits for, beside large ones
	urgencies               = 3
)

// urgency returns the urgency of the flush's blocks.
func (f *flush) urgency() blockUrgency {
	if f.urgent {
		return forAwaited
	}
	return forFlush
}

// flushTrigger is the reason for cutting a flush.
type flushTrigger uint8

const (
	triggerSize flushTrigger = iota
	triggerAge
	triggerAwaited
	triggerCommit
	triggerClose
	triggerCount // their number
)

func (t flushTrigger) String() string {
	return [triggerCount]string{"size", "age", "awaited", "commit", "close"}[t]
}

// flush is a set of frames of one retention class, cut at once. It becomes one blob and one transaction, unless it is divided
// (see flushPart). The accumulator fills it. Then the goroutine that writes it owns it, except for the fields marked otherwise.
type flush struct {
	ticket  uint64 // flushes are claimed in this order
	queue   *classQueue
	trigger flushTrigger
	cutAt   time.Time
	// urgent: it was cut for awaited batches beside large flushes. large: others need not wait for it, see classQueue.large.
	urgent, large bool

	batches []*logBatch // in the order of their categories' turns
	blocks  []*block    // of payloads that were compressed, or queued for it, when the flush was cut
	small   []*payload  // those that were not

	flushVolume
	oldest time.Time // arrival of its first frame

	// Owned by the accumulator all the time.

	uncompressed int // uncompressed blocks, plus one until the small payloads are packed
	// attached counts the parts for which the flush counts as in flight.
	attached int

	// compressed is closed when all blocks are compressed. claimed is closed when the flush has entered the queues of its logs.
	compressed chan struct{}
	claimed    chan struct{}
	// afterClaim is the claimed channel of the previous flush, nil if there is none. Only the channel is kept, so that the garbage
	// collector can free that flush.
	afterClaim <-chan struct{}
}

func newFlush(ticket uint64, fl *classQueue, before *flush) *flush {
	f := &flush{ticket: ticket, queue: fl, uncompressed: 1, attached: 1, compressed: make(chan struct{}), claimed: make(chan struct{})}
	if before != nil {
		f.afterClaim = before.claimed
	}
	return f
}
