package scribed

import (
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/role/request"
	"scribe/scribed/spool"
)

// ackLevel is what a caller waits for.
type ackLevel uint8

const (
	ackNone      ackLevel = 1 // frames in memory or in the spool
	ackSpooled   ackLevel = 2 // frames synced in the spool, or committed
	ackCommitted ackLevel = 3 // the upstream's answer
)

// queuedFrame is one frame in memory.
type queuedFrame struct {
	bytes     []byte // of the entry's memory, or the caller's
	ref       spool.Ref
	messages  int32
	index     int32 // in the caller's request; names the frame within its entry
	attempts  int32 // that ended with a reason that may never end
	sequenced bool
	unsure    bool // an attempt ended with an unknown outcome: it may be stored whatever a later one says
	spooled   bool // it is in the spool, as ref, claimed
}

func (f *queuedFrame) amount() request.Amount {
	return request.Amount{Frames: 1, Bytes: int64(len(f.bytes)), Messages: int64(f.messages)}
}

// sharedBuffer is a pooled buffer that frames point into.
type sharedBuffer struct {
	buf *buffers.Buffer
	// refs are entries, appends to the spool and dead letters that use it; the last gives it back. Guarded by Scribed.mu.
	refs int
}

// queueEntry is what one request brought for one category: its frames in order. It is what moves through the queue.
type queueEntry struct {
	category string
	frames   []queuedFrame // without an outcome
	bytes    int64         // of frames
	charge   int64
	since    time.Time
	ack      ackLevel
	sub      *pendingCall // who waits for its frames; nil when nobody does, or not any more
	// mem holds the frames' bytes, those that have an outcome included. nil: they are the caller's, who waits until none is used.
	mem *sharedBuffer
	// batch is the request that it is on its way with; nil in the queue.
	batch  *upstreamBatch
	number uint64 // in the order in which entries came
	// after: what stands in the spool up to this position comes first, if the queue is ordered.
	after spool.Position
	// writing: its frames are being appended to the spool. They are sent nonetheless.
	writing bool
	// unsure: an attempt ended with an unknown outcome, so the frames may be stored.
	unsure bool
	// abandoned: whoever waited has given up while it was on its way. It is not sent again.
	abandoned bool
	// refused are the sequences of which the upstream has refused a frame for good, and somebody waits.
	refused []producerSequence
	// alone: a request that held it was refused as a whole, so it is sent alone to find out whether it was the cause.
	alone bool
	// backfill: its frames came from the spool, and go back there if they are not taken.
	backfill bool
	// waiter is its place among the calls that wait for capacity; nil when it does not.
	waiter *waiter
	// owed is what it counts for in queue.owed.
	owed int64
	// dropped is how often older frames were dropped to free capacity for it.
	dropped int
}

// frameOverhead is what bookkeeping is charged for a frame, entryOverhead for an entry, recordOverhead for a frame in the spool, in
// bytes.
const (
	frameOverhead  = 100
	entryOverhead  = 350
	recordOverhead = 64
)

func chargeOf(frames int, bytes int64) int64 {
	return bytes + int64(frames)*frameOverhead + entryOverhead
}

// countBytes is the bytes of the frames without an outcome.
func (e *queueEntry) countBytes() (n int64) {
	for i := range e.frames {
		n += int64(len(e.frames[i].bytes))
	}
	return n
}

// amount is what the entry holds.
func (e *queueEntry) amount() (a request.Amount) {
	for i := range e.frames {
		a = a.Plus(e.frames[i].amount())
	}
	return a
}

// onDisk is what its frames take in the spool.
func (e *queueEntry) onDisk() int64 { return e.bytes + int64(len(e.frames))*recordOverhead }

// isSpooled reports whether all its frames are in the spool.
func (e *queueEntry) isSpooled() bool {
	for i := range e.frames {
		if !e.frames[i].spooled {
			return false
		}
	}
	return true
}

// canSpill reports whether the entry may leave the memory for the spool. What somebody waits for may not: a caller of spooled
// has his entry written by himself, one of committed waits for the upstream.
func (e *queueEntry) canSpill() bool { return e.sub == nil && !e.writing && !e.abandoned }

// awaitsUpstream reports whether somebody waits for the upstream's answer.
func (e *queueEntry) awaitsUpstream() bool { return e.sub != nil && e.ack == ackCommitted }

// spoolRefs are where its frames are in the spool, of which all are there.
func (e *queueEntry) spoolRefs() []spool.Ref {
	refs := make([]spool.Ref, len(e.frames))
	for i := range e.frames {
		refs[i] = e.frames[i].ref
	}
	return refs
}

// copyFrames copies the frames, which are the caller's, to mem.
func (e *queueEntry) copyFrames(mem *buffers.Buffer) {
	e.mem = &sharedBuffer{buf: mem, refs: 1}
	at := 0
	for i := range e.frames {
		f := &e.frames[i]
		n := copy(mem.B[at:], f.bytes)
		f.bytes = mem.B[at : at+n : at+n]
		at += n
	}
}
