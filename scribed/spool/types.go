package spool

import (
	"errors"
	"time"

	"scribe/scribed/spool/layout"
)

// Record is one record to append: a frame, which the spool does not parse.
type Record struct {
	// Category is the queue that the record belongs to; 1 to 255 bytes.
	Category string
	// Messages is the number of messages in it, for the counters.
	Messages int
	// Data is the frame; it is not used after Append returns.
	Data []byte
}

// Ref identifies a record in the spool. It is valid until the record is done or dropped, in the process that got it.
type Ref struct {
	Position Position
	Size     uint32 // of the record in the segment, its header included
}

// Position is a record's place in the order of its category: records were appended in order of their positions.
type Position = layout.Position

// ClaimedRecord is a record that [Spool.Claim] claimed from a category's backlog.
type ClaimedRecord struct {
	Ref      Ref
	Messages int
	// Data is the frame. It is part of the buffer given to Claim, or newly allocated.
	Data []byte
}

// Amount counts records, their messages, and the bytes of their frames.
type Amount struct {
	Records, Messages, Bytes int64
}

// CategorySums are the amounts that a spool holds of one category.
type CategorySums struct {
	Category string
	// Held counts the records that are neither done nor dropped, claimed ones included.
	Held Amount
	// Unclaimed counts those that Claim can return.
	Unclaimed Amount
	// Last is the position of the newest held record, or a later one.
	Last Position
	// Oldest is when the oldest held record was appended; in a segment that is filled, to the resolution of a segment.
	Oldest time.Time
}

// GoneRecords counts unclaimed records that left the backlog of a category: dropped for the reason given to Drop, Damaged, or KeyDeleted.
type GoneRecords struct {
	Category string // empty: unknown
	Reason   string
	Amount
}

// Damaged is the reason of records that are gone because their files are damaged.
const Damaged = "damaged"

// KeyDeleted is the reason of records that are gone because somebody deleted the key that they are encrypted with.
const KeyDeleted = "key_deleted"

// damageLoss is a range that recovery or a reader found damaged. It was copied to the quarantine, and is counted and logged.
type damageLoss struct {
	Segment  uint64
	From, To int64 // offsets in the segment's file
	Records  int64 // -1 = unknown
	// Category, Messages and Bytes are those of the frames, where they are known.
	Category        string
	Messages, Bytes int64
	// QuarantineFile is the path of the copy of the range; empty if there is none.
	QuarantineFile string
	Err            error
}

var (
	// ErrFull says that the record does not fit under MaxBytes, or that the disk is full. Nothing was written.
	ErrFull = errors.New("spool: full")
	// ErrClosed says that the spool was closed.
	ErrClosed = errors.New("spool: closed")
	// ErrFailed says that a sync failed: the content of the file is unknown, the segment was abandoned, and nothing that was
	// appended since the last successful sync may be acknowledged. The spool continues in a new segment.
	ErrFailed = errors.New("spool: sync failed")
)
