package batcher

import (
	"time"

	"scribe/internal/buffers"
	"scribe/internal/pointer"
	"scribe/internal/record"
	scribev1 "scribe/proto/scribe/v1"
)

// verdict is what has been decided about a frame.
type verdict uint8

const (
	// kept: the frame is part of what the flush stores.
	kept verdict = 0
	// stored: all its sequences were stored by an earlier flush. It is acknowledged as a duplicate whatever becomes of this one.
	stored verdict = 1
	// repeated: all its sequences are those of frames before it in this flush. It shares their fate.
	repeated verdict = 2
	// refused: its frame.fault says why.
	refused verdict = 3
)

// frame is one frame in memory. Its bytes are in the memory of its piece, after those of the frames before it.
type frame struct {
	size     uint32
	messages uint32
	baseTime int64

	producer  uint64
	first     uint64 // first sequence
	epoch     uint32
	sequenced bool

	verdict verdict
	fault   *scribev1.ErrorInfo // of a refused frame
}

// last is the sequence of the frame's last message.
func (f *frame) last() uint64 { return f.first + uint64(f.messages) - 1 }

// follows reports whether f continues the sequences of before.
func (f *frame) follows(before *frame) bool {
	return f.producer == before.producer && f.epoch == before.epoch && f.first == before.last()+1
}

// piece is a run of frames of one request and one target, adjacent in memory. It is the unit in which frames are accumulated, so
// that the cost of bookkeeping is one per run and not one per frame.
type piece struct {
	sub    *submission // who waits for the outcome; nil when nobody does
	index  int         // of the first frame in the request
	frames []frame
	mem    segment
	bytes  int
	runs   int // upper bound of the sequence runs in an exactly_once category; 0 in others
}

// target is where frames go.
type target struct {
	shard    record.ShardID
	category string
	class    uint32
	// exactlyOnce: sequences are checked and remembered by the metadata engine.
	exactlyOnce bool
}

// group is one physical shard's part of a flush.
type group struct {
	target
	payloads []*payload
	open     *payload // the last of payloads while it takes frames; nil when the next frame begins a new one

	// What follows belongs to the goroutine that writes the flush.

	// epoch and lsn are the writer's epoch and the LSN that the group's first pointer will get; 0 while not known.
	epoch uint64
	lsn   record.LSN
	// claimed is the number of payloads that the ledger counts as in flight for this group.
	claimed int
}

// payload is a run of frames of one physical shard that is compressed and read as a whole.
type payload struct {
	group    *group
	class    uint32
	pieces   []piece
	bytes    int
	frames   int
	messages int
	runs     int

	block  *block // set when it is compressed or about to be
	offset int    // in the raw block

	// What follows belongs to the goroutine that writes the flush.

	// extents are what is stored of the payload: one, all of it, unless frames in it were refused.
	extents []extent
	// fault is why the payload as a whole was not stored.
	fault *scribev1.ErrorInfo
}

// extent is a run of kept frames, adjacent in a block: what one pointer points to.
type extent struct {
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
	flush    *flush
	class    uint32
	payloads []*payload
	raw      int
	part     *blobPart // set when the flush is written

	// Set by the compressor.
	codec  pointer.Codec
	stored *buffers.Buffer
}

// trigger is why a flush was cut.
type trigger uint8

const (
	triggerSize trigger = iota
	triggerAge
	triggerCommit
	triggerClose
	triggers // their number
)

func (t trigger) String() string {
	return [triggers]string{"size", "age", "commit", "close"}[t]
}

// flush is what becomes durable in one transaction. The accumulator owns it until it is cut; then the goroutine that writes it
// does, but for what the comments below say.
type flush struct {
	ticket  uint64 // flushes commit in this order
	trigger trigger
	opened  time.Time
	cutAt   time.Time

	groups map[record.ShardID]*group
	order  []*group // by arrival of the first frame
	blocks []*block
	blobs  []*blobPart

	size     int64 // what counts towards Config.FlushBytes
	raw      int64 // bytes of frames
	frames   int
	messages int
	payloads int
	runs     int
	waiters  int // pieces whose request waits for the commit

	// Owned by the accumulator all the time.
	uncompressed int   // blocks that are not compressed yet
	cut          bool  // takes no more frames
	charge       int64 // bytes of memory to release when it is done

	// compressed is closed when all blocks are; prepared when the flush's logs are open and its places in them predicted; done
	// when its commit has ended one way or another. A flush goes through the last two after the one before it.
	compressed chan struct{}
	prepared   chan struct{}
	done       chan struct{}
	// afterPrepared and afterDone are those of the flush before; nil for the first.
	afterPrepared <-chan struct{}
	afterDone     <-chan struct{}
}

// closed is a channel that is.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func newFlush(ticket uint64, opened time.Time, before *flush) *flush {
	f := &flush{
		ticket:     ticket,
		opened:     opened,
		groups:     make(map[record.ShardID]*group),
		compressed: make(chan struct{}),
		prepared:   make(chan struct{}),
		done:       make(chan struct{}),
		// Only the channels of the flush before are kept, so that it can be collected.
		afterPrepared: closed,
		afterDone:     closed,
	}
	if before != nil {
		f.afterPrepared, f.afterDone = before.prepared, before.done
	}
	return f
}
