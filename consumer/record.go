package consumer

import (
	"time"

	"scribe/internal/format/record"
)

// ShardID names a physical shard: the category's id, the logical shard and the writer. Its String is "7/0/1".
type ShardID = record.ShardID

// Attributes are the names and values beside a payload, as they stand in it: All yields them in order, Get finds one by name, and
// Len counts them. The nil Attributes are none.
type Attributes = record.Attributes

// Record is one message. Payload, Key and Attributes point into the payload that it came in: they must not be changed, and are
// valid until the next step of the iteration.
type Record struct {
	Payload []byte
	// Key is nil when the message has none; a key may be present and empty.
	Key []byte
	// Attributes is nil when the message has none.
	Attributes Attributes
	// Time is the event time. Messages that were written without one have that of their frame: when it was begun.
	Time time.Time
	// Persisted is when the pointer to the message was committed: the time that streams are ordered by.
	Persisted time.Time
	// LogicalShard is what the producer wrote to, Shard the physical shard in it that one batcher appended to; in a sequenced category the
	// sequenced log.
	LogicalShard uint32
	// SampleRate N says that the quota of the category kept one message in N, this one among them; 1 means all. Who counts or sums
	// multiplies by it.
	SampleRate uint32
	Shard      ShardID
	// LSN is the log sequence number of the pointer that covers the message, Index the message's place among those of that
	// pointer, from 0. (Shard, LSN, Index) names a message for ever.
	LSN   uint64
	Index int
	// Atomic says that the message belongs to a batch that its producer wrote as a whole, whose messages come one after the other.
	// BatchLeft of them follow this one: at 0 the batch is complete. A checkpoint between two of them is exact, too: who resumes there
	// gets the rest of the batch.
	Atomic    bool
	BatchLeft int
	// Offset is the message's number in a sequenced category, from 0 and without gaps over its whole life, whatever is read of it; 0 in
	// other categories.
	Offset uint64
}
