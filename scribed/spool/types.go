package spool

import (
	"errors"
	"time"

	"scribe/scribed/spool/layout"
)

// Record is one record to append: a frame, whose bytes the spool does not look into.
type Record struct {
	// Category is the queue that the record belongs to; 1 to 255 bytes.
	Category string
	// Messages in it, for the counters.
	Messages int
	// Data is the frame; used only until Append returns.
	Data []byte
}

// Ref names a record in the spool. It is valid until Done or Drop of it, in the process that got it.
type Ref struct {
	Segment uint64
	Offset  uint32
	Size    uint32 // of the record in the segment, its header included
}

// Position says where a record stands among those of its category: they were appended in the order of their positions.
type Position = layout.Position

// Position returns where the record stands.
func (r Ref) Position() Position { return layout.At(uint32(r.Segment), r.Offset) } //nolint:gosec // segments have 32 bits

// ClaimedRecord is a record that [Spool.Claim] took out of a category's backlog.
type ClaimedRecord struct {
	Ref      Ref
	Messages int
	// Time is when it was appended.
	Time time.Time
	// Data is the frame; it is a part of the buffer given to Claim, or newly allocated.
	Data []byte
}

// Amount counts records, their messages, and the bytes of their frames.
type Amount struct {
	Records, Messages, Bytes int64
}

// CategorySums is what a spool holds of one category.
type CategorySums struct {
	Category string
	// Held is everything that is neither done nor dropped, claimed records included.
	Held Amount
	// Backlog is what is held and is not in the memory of whoever appended it.
	Backlog Amount
	// Unclaimed is the part of the backlog that Claim will return.
	Unclaimed Amount
	// Last is the position of the newest held record, or of one behind it.
	Last Position
	// Oldest is when the oldest held record was appended; exact to a segment's resolution.
	Oldest time.Time
}

// GoneRecords is what left the backlog of a category that nobody had claimed: dropped for the reason given to Drop, or Damaged.
type GoneRecords struct {
	Category string // empty: unknown
	Reason   string
	Amount
}

// Damaged is the reason of records that are gone because their files are damaged.
const Damaged = "damaged"

// DamageLoss is a range that recovery or a reader found damaged: it was moved to the quarantine, and is counted.
type DamageLoss struct {
	Segment  uint64
	From, To int64 // offsets in the segment's file
	Records  int64 // -1 = unknown
	// Category, Messages and Bytes of the frames, where they are known.
	Category        string
	Messages, Bytes int64
	// QuarantineFile is the copy of the range; empty when there is none.
	QuarantineFile string
	Err            error
}

var (
	// ErrFull says that the record does not fit under MaxBytes, or that the disk is full. Nothing was written.
	ErrFull = errors.New("spool: full")
	// ErrClosed says that the spool was closed.
	ErrClosed = errors.New("spool: closed")
	// ErrFailed says that a sync failed: the file's content is unknown, the segment was given up, and nothing that was appended
	// since the last successful sync may be acknowledged. The spool goes on in a new segment.
	ErrFailed = errors.New("spool: sync failed")
)
