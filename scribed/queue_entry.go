package scribed

import (
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/delivery"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// ackLevel is the acknowledgement level that a caller waits for.
type ackLevel uint8

const (
	ackNone      ackLevel = 1 // frames in memory or in the spool
	ackSpooled   ackLevel = 2 // frames synced in the spool, or committed
	ackCommitted ackLevel = 3 // the upstream's answer
)

// queuedFrame is one frame in memory.
type queuedFrame struct {
	bytes     []byte // in the entry's buffer, or the caller's
	ref       spool.Ref
	messages  int32
	index     int32 // index in the caller's request; identifies the frame within its entry
	attempts  int32 // attempts that ended with a reason that may be permanent
	sequenced bool
	follows   bool // it, or one before it of its stream, follows a frame of an earlier call
	behind    bool // in flight: another request with its stream was, too, when it was sent
	unsure    bool // an attempt had an unknown outcome: the frame may be stored whatever a later attempt says
	// refusal is the error of the last attempt; nil before the first one has ended.
	refusal *scribev1.ErrorInfo
	spooled bool // it is in the spool, claimed, as ref
	// sequences are set if sequenced is.
	sequences frameSequences
	// minute is the one that the frame's messages are counted in (package delivery); report: it is a loss report, which nobody has produced.
	minute int64
	report bool
	// sampledOut: the upstream left it out on purpose.
	sampledOut bool
}

// setOrigin sets what the header says of whose the frame is, and of when. bytes must be set.
func (f *queuedFrame) setOrigin(h *record.Header) {
	f.minute = delivery.MinuteOf(h.BaseTime)
	if f.sequenced = h.Sequenced(); f.sequenced {
		f.sequences = sequencesOf(h)
		return
	}
	f.report = h.Count == 1 && loss.IsReport(f.bytes)
}

func (f *queuedFrame) amount() request.Amount {
	return request.Amount{Frames: 1, Bytes: int64(len(f.bytes)), Messages: int64(f.messages)}
}

// sharedBuffer is a pooled buffer that frames point into.
type sharedBuffer struct {
	buf *buffers.Buffer
	// refs counts the entries, spool appends and dead letters that use the buffer; the last one returns it. Guarded by
	// Scribed.mu.
	refs int
}

// queueEntry holds the frames of one category in one request, in order. It is the unit that moves through the queue.
type queueEntry struct {
	category string
	frames   []queuedFrame // those without an outcome
	bytes    int64         // of frames
	charge   int64
	since    time.Time
	ack      ackLevel
	sub      *pendingCall // the call that waits for its frames; nil if none does, or no longer
	lingered bool         // nobody waits for its frames, though a call may: see WriteRequest.lingered
	// mem holds the frames' bytes, including frames that have an outcome. nil: the bytes are the caller's, which waits until they
	// are no longer used.
	mem *sharedBuffer
	// batch is the request that the entry is in flight with; nil while it is in the queue.
	batch  *upstreamBatch
	number uint64 // in order of arrival
	// after: records in the spool up to this position go first, if the queue is ordered.
	after spool.Position
	// writing says that its frames are being appended to the spool. They may be sent meanwhile.
	writing bool
	// unsure says that an attempt had an unknown outcome, so the frames may be stored.
	unsure bool
	// abandoned says that its caller returned while the entry was in flight. It is not sent again.
	abandoned bool
	// refused are the sequences of which the upstream refused a frame for good while a caller waits.
	refused []producerSequence
	// cut are the sequences of which the caller was told that a frame came out of order.
	cut []producerSequence
	// alone says that a request with this entry was refused as a whole. It is sent alone, to find out whether it was the cause.
	alone bool
	// backfill says that its frames came from the spool, and return there if they are not accepted.
	backfill bool
	// ready says that its call should try again; nil when it does not wait for capacity.
	ready lifecycle.WakeChannel
	// owed is its part of sendQueue.owed.
	owed int64
	// dropped counts how often older frames were dropped to free capacity for it.
	dropped int
}

// frameOverhead, entryOverhead and recordOverhead are the bytes charged for the bookkeeping of a frame, of an entry, and of a
// frame in the spool.
const (
	frameOverhead  = 140
	entryOverhead  = 350
	recordOverhead = 64
)

func chargeOf(frames int, bytes int64) int64 {
	return bytes + int64(frames)*frameOverhead + entryOverhead
}

// countBytes sums the bytes of the frames without an outcome.
func (e *queueEntry) countBytes() (n int64) {
	for i := range e.frames {
		n += int64(len(e.frames[i].bytes))
	}
	return n
}

// amount sums the frames without an outcome.
func (e *queueEntry) amount() (a request.Amount) {
	for i := range e.frames {
		a = a.Plus(e.frames[i].amount())
	}
	return a
}

// onDisk is the space that its frames take in the spool.
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

// canSpill reports whether the entry may leave the memory for the spool. Entries with a waiting caller may not: a caller of
// SPOOLED writes its own entry, and one of COMMITTED waits for the upstream.
func (e *queueEntry) canSpill() bool { return e.sub == nil && !e.writing && !e.abandoned }

// awaitsUpstream reports whether a caller waits for the upstream's answer.
func (e *queueEntry) awaitsUpstream() bool { return e.sub != nil && e.ack == ackCommitted }

// isAwaited reports whether somebody waits for the upstream's answer behind the call that does.
func (e *queueEntry) isAwaited() bool { return e.awaitsUpstream() && !e.lingered }

// spoolRefs returns the references of its frames, all of which are in the spool.
func (e *queueEntry) spoolRefs() []spool.Ref {
	refs := make([]spool.Ref, len(e.frames))
	for i := range e.frames {
		refs[i] = e.frames[i].ref
	}
	return refs
}

// copyFrames copies the frames from the caller's buffer to mem.
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
