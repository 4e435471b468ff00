package producer

import (
	"fmt"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Message is what is written. The producer copies it: payload, key and attributes belong to the caller again when the call that
// took the message returns.
type Message struct {
	// Payload is the content: any bytes, also none.
	Payload []byte
	// Key is optional; an empty key that is not nil is present. At most 64 KiB.
	Key []byte
	// Time is the event time, kept to the microsecond. The zero Time means now, to a few milliseconds: messages of one frame that
	// come within 5 ms have the same.
	Time time.Time
	// Attributes are kept in order; at most 1,024.
	Attributes []Attribute
	// Shard is the logical shard, below the category's number of shards. Messages of one (category, shard) keep their order.
	Shard uint32
}

// Attribute is a name and a value beside the payload, for tracing, privacy or filtering. The name is UTF-8 text and not empty.
type Attribute struct {
	Name  string
	Value []byte
}

// Size is what limits and quotas count, in bytes: payload, key, and the names and values of the attributes.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.Key)
	for i := range m.Attributes {
		n += len(m.Attributes[i].Name) + len(m.Attributes[i].Value)
	}
	return n
}

// Longest that a message can be in a frame beside its [Message.Size]: the varints of payload length, event time, key length and
// attribute section; then those of each attribute.
const (
	encodedExtra     = 5 + 10 + 3 + 4 + 2
	encodedAttribute = 5 + 5
)

// encodedBound is never below the bytes that the message takes in a frame.
func (m *Message) encodedBound() int {
	return m.Size() + encodedExtra + encodedAttribute*len(m.Attributes)
}

// AckLevel says what must have happened before a write is acknowledged.
type AckLevel uint8

// Acknowledgement levels. The names that [AckLevel.String] gives them are fixed.
const (
	// AckNone: a server accepted the messages into memory. They may be lost with it.
	AckNone AckLevel = 1
	// AckSpooled: the messages are synced to the disk buffer of the host's agent, or committed.
	AckSpooled AckLevel = 2
	// AckCommitted: the messages are durable and any reader can see them.
	AckCommitted AckLevel = 3
)

// String is "none", "spooled" or "committed".
func (a AckLevel) String() string {
	switch a {
	case AckNone:
		return "none"
	case AckSpooled:
		return "spooled"
	case AckCommitted:
		return "committed"
	default:
		return fmt.Sprintf("AckLevel(%d)", uint8(a))
	}
}

// ParseAckLevel reads what [AckLevel.String] writes.
func ParseAckLevel(text string) (AckLevel, error) {
	for _, a := range []AckLevel{AckNone, AckSpooled, AckCommitted} {
		if text == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("producer: acknowledgement level %q: want none, spooled or committed", text)
}

func (a AckLevel) isValid() bool { return a >= AckNone && a <= AckCommitted }

func (a AckLevel) proto() scribev1.AckLevel {
	switch a {
	case AckNone:
		return scribev1.AckLevel_ACK_LEVEL_NONE
	case AckSpooled:
		return scribev1.AckLevel_ACK_LEVEL_SPOOLED
	default:
		return scribev1.AckLevel_ACK_LEVEL_COMMITTED
	}
}

// appendAttributes writes the attributes of m over scratch, which grows to the largest number seen and is used again.
func (m *Message) appendAttributes(scratch []record.Attribute) []record.Attribute {
	scratch = scratch[:0]
	for i := range m.Attributes {
		scratch = append(scratch, record.Attribute{Name: m.Attributes[i].Name, Value: m.Attributes[i].Value})
	}
	return scratch
}
