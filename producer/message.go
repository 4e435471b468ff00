package producer

import (
	"fmt"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Message is a message to write. The producer copies it: the caller may reuse payload, key and attributes when the call returns.
type Message struct {
	// Payload is the content: any bytes. It may be empty.
	Payload []byte
	// Key is optional and at most 64 KiB. An empty key is present unless it is nil.
	Key []byte
	// Time is the event time, with microsecond precision. The zero Time means now, to within a few milliseconds: messages that
	// enter a frame within 5 ms of each other get the same time.
	Time time.Time
	// Attributes keep their order. There are at most 1,024.
	Attributes []Attribute
	// Shard is the logical shard, below the category's number of shards. 0 leaves the choice to the category, which may place
	// messages a batch at a time, by key, or by a field of the payload; where writers choose, it is shard 0. [ShardZero] is shard
	// 0 in any case. In a category that places by key or field, a message with a shard fails with [ErrInvalid]. Messages of one
	// (category, shard) keep their order.
	Shard uint32
}

// Attribute is a name and a value sent with the payload, for tracing, privacy or filtering. The name is UTF-8 text and must not
// be empty.
type Attribute = record.Attribute

// Size returns the bytes that limits and quotas count: payload, key, and the names and values of the attributes.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.Key)
	for i := range m.Attributes {
		n += len(m.Attributes[i].Name) + len(m.Attributes[i].Value)
	}
	return n
}

// Upper bounds on the encoded bytes of a message beyond its [Message.Size]: the varints of payload length, event time, key length
// and attribute section; then the varints of each attribute.
const (
	encodedExtra     = 5 + 10 + 3 + 4 + 2
	encodedAttribute = 5 + 5
)

// encodedBound returns an upper bound on the bytes of the message in a frame.
func (m *Message) encodedBound() int {
	return m.Size() + encodedExtra + encodedAttribute*len(m.Attributes)
}

// AckLevel is an acknowledgement level: the durability that a write waits for.
type AckLevel uint8

// Acknowledgement levels. Their names ([AckLevel.String]) are fixed.
const (
	// AckNone: a server accepted the messages into memory. They are lost if it crashes.
	AckNone AckLevel = 1
	// AckSpooled: the messages are synced to the disk buffer of the host's agent, or committed.
	AckSpooled AckLevel = 2
	// AckCommitted: the messages are durable and readable.
	AckCommitted AckLevel = 3
)

// ackNames are the names of the levels.
var ackNames = [...]string{AckNone: "none", AckSpooled: "spooled", AckCommitted: "committed"}

// String returns "none", "spooled" or "committed".
func (a AckLevel) String() string {
	if a.isValid() {
		return ackNames[a]
	}
	return fmt.Sprintf("AckLevel(%d)", uint8(a))
}

// ParseAckLevel parses the output of [AckLevel.String].
func ParseAckLevel(text string) (AckLevel, error) {
	for _, a := range []AckLevel{AckNone, AckSpooled, AckCommitted} {
		if text == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("producer: acknowledgement level %q: want none, spooled or committed", text)
}

func (a AckLevel) isValid() bool { return a >= AckNone && a <= AckCommitted }

// proto returns the level in requests, which has the same number.
func (a AckLevel) proto() scribev1.AckLevel { return scribev1.AckLevel(a) }
