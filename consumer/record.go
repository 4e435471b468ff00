package consumer

import (
	"time"

	"scribe/internal/format/record"
)

// ShardID names a physical shard: category id, logical shard and writer slot. Its String is "7/0/1".
type ShardID = record.ShardID

// Attributes are the names and values of a message, in their stored order. All yields them in order, Get finds one by name, and
// Len counts them. nil is valid and empty.
type Attributes = record.Attributes

// Origin is where a message comes from: the frame that its producer made.
type Origin struct {
	// Producer and Epoch are those of the producer's run, which numbered its messages of the logical shard. Producer is 0 for messages that were not
	// numbered, as those that were published as JSON.
	Producer uint64
	Epoch    uint32
	// Begun is when the frame was begun, Unix microseconds by the producer's clock.
	Begun int64
}

// Record is one message. Payload, Key and Attributes point into the fetched payload: they must not be changed, and are valid
// until the next step of the iteration.
type Record struct {
	Payload []byte
	// Key is nil when the message has no key; a key may also be present and empty.
	Key []byte
	// Attributes is nil when the message has none.
	Attributes Attributes
	// Time is the event time. Messages written without one have the time at which their frame was begun.
	Time time.Time
	// Persisted is the time at which the pointer to the message was committed. Streams are ordered by it.
	Persisted time.Time
	// LogicalShard is the shard that the producer wrote to. Shard is the physical shard in it that one batcher appended to; in a
	// sequenced category it is the sequenced log.
	LogicalShard uint32
	// SampleRate N means that the category's quotas, for writing and for reading, kept one message in N, including this one; 1 means
	// all. Multiply counts and sums by it.
	SampleRate uint32
	Shard      ShardID
	// LSN is the log sequence number of the pointer that covers the message. Index is the message's index, from 0, among that
	// pointer's messages. (Shard, LSN, Index) identifies a message permanently.
	LSN   uint64
	Index int
	// Atomic reports that the message belongs to an atomic batch; the messages of a batch come one after another. BatchLeft is
	// how many of them follow this one: at 0 the batch is complete. A checkpoint between two of them is exact, too: a consumer
	// that resumes there gets the rest of the batch.
	Atomic    bool
	BatchLeft int
	// Offset is the message's number in a sequenced category: from 0 and without gaps over the category's whole life, independent
	// of what a consumer reads. It is 0 in other categories.
	Offset uint64
	// Origin is the producer's frame, which several messages share: it must not be changed. Sequence is the producer's number of the message.
	Origin   *Origin
	Sequence uint64
}
