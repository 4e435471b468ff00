package placement

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sort"

	"github.com/cespare/xxhash/v2"
)

// Kind is the rule of a layout. The numbers are part of the tag and never reused.
type Kind uint8

// The rules that place each message by itself. Other categories have no layout.
const (
	// ByKey places by the message's key.
	ByKey Kind = 2
	// ByField places by a field of the message's content.
	ByField Kind = 3
)

// Unplaced is the tag of a frame whose messages still have to be placed, by the first server that knows the category. 0 is the tag
// of a frame whose shard its writer chose.
const Unplaced = 1<<24 - 1

// Layout is a rule with a number of shards. Make it with NewLayout.
type Layout struct {
	kind   Kind
	field  string // the text of path
	path   Path
	shards uint32
	ranges []Range // none = equal ones
	tag    uint32
}

// Range is the hashes of a shard: from here to the next range, or to the end.
type Range struct {
	Shard uint32
	From  uint64
}

// MaxRanges bounds the ranges of a layout.
const MaxRanges = 256

// EqualRanges returns the ranges of a layout with so many shards, of which none was split.
func EqualRanges(shards uint32) []Range {
	ranges := make([]Range, 0, shards)
	for i := range shards {
		from, rest := bits.Div64(uint64(i), 0, uint64(shards))
		if rest > 0 {
			from++
		}
		ranges = append(ranges, Range{Shard: i, From: from})
	}
	return ranges
}

// NewLayout returns a layout. The field is empty unless the kind is ByField, where it is the text of a [Path].
func NewLayout(kind Kind, field string, shards uint32) (*Layout, error) {
	l := &Layout{kind: kind, field: field, shards: max(shards, 1)}
	switch {
	case kind == ByField:
		var err error
		if l.path, err = ParsePath(field); err != nil {
			return nil, err
		}
	case kind != ByKey:
		return nil, fmt.Errorf("placement: unknown kind %d", kind)
	case field != "":
		return nil, fmt.Errorf("placement: a field beside the placement by key")
	}
	l.tag = tagOf(kind, l.path, l.shards)
	return l, nil
}

// NewRangedLayout returns a layout some shards of which were split. The ranges are by hash, and the first one begins at 0. shards is how
// many shards there were before.
func NewRangedLayout(kind Kind, field string, shards uint32, ranges []Range) (*Layout, error) {
	l, err := NewLayout(kind, field, shards)
	if err != nil || len(ranges) == 0 {
		return l, err
	}
	if len(ranges) > MaxRanges || ranges[0].From != 0 {
		return nil, fmt.Errorf("placement: %d ranges, of which the first begins at %#x: want at most %d, and 0", len(ranges), ranges[0].From, MaxRanges)
	}
	for i := range ranges[1:] {
		if ranges[i+1].From <= ranges[i].From {
			return nil, fmt.Errorf("placement: range %d begins at %#x, not after %#x", i+1, ranges[i+1].From, ranges[i].From)
		}
	}
	l.ranges = ranges
	l.tag = tagOfRanges(l.tag, ranges)
	return l, nil
}

// tagOfRanges hashes the tag of the layout with equal ranges, and of each range its shard (4 bytes) and its first hash (8 bytes), all
// little-endian. The tag is cut from it as in tagOf.
func tagOfRanges(equal uint32, ranges []Range) uint32 {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+12*len(ranges)), equal)
	for _, r := range ranges {
		b = binary.LittleEndian.AppendUint32(b, r.Shard)
		b = binary.LittleEndian.AppendUint64(b, r.From)
	}
	return cutTag(b)
}

func cutTag(b []byte) uint32 { return min(max(uint32(xxhash.Sum64(b)>>40), 1), Unplaced-1) }

// tagOf hashes the kind (1 byte), the number of shards (4 bytes, little-endian), and of each step of the path its length (4 bytes,
// little-endian) and its bytes. The tag is the upper 24 bits; the two values with other meanings become their neighbours.
func tagOf(kind Kind, path Path, shards uint32) uint32 {
	b := make([]byte, 0, 64)
	b = append(b, byte(kind))
	b = binary.LittleEndian.AppendUint32(b, shards)
	for _, step := range path {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(step)))
		b = append(b, step...)
	}
	return cutTag(b)
}

// Kind returns the rule.
func (l *Layout) Kind() Kind { return l.kind }

// String names what messages are placed by: "key", or "field client_ip".
func (l *Layout) String() string {
	if l.kind == ByField {
		return "field " + l.field
	}
	return "key"
}

// PlacesLike reports whether another layout places messages by the same: by key, or by the same field.
func (l *Layout) PlacesLike(other *Layout) bool {
	return l.kind == other.kind && l.path.Equal(other.path)
}

// Path returns the path of the field; nil unless the kind is ByField.
func (l *Layout) Path() Path { return l.path }

// Shards returns the number of shards, without those that come from splits.
func (l *Layout) Shards() uint32 { return l.shards }

// Tag returns the mark of frames whose shard follows from the layout: 24 bits, neither 0 nor [Unplaced].
func (l *Layout) Tag() uint32 { return l.tag }

// ShardOf returns the shard of a value: a key, or the canonical text of a field.
func (l *Layout) ShardOf(value []byte) uint32 {
	hash := xxhash.Sum64(value)
	if l.ranges == nil {
		return Shard(hash, l.shards)
	}
	// The last range that does not begin after the hash.
	at := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].From > hash })
	return l.ranges[at-1].Shard
}

// Place returns the shard of a message with this key (nil without one) and payload. ok is false if it has no key or no such field:
// then the message may be in any shard.
func (l *Layout) Place(key, payload []byte, scratch *Scratch) (shard uint32, ok bool) {
	value, ok := l.Value(key, payload, scratch)
	if !ok {
		return 0, false
	}
	return l.ShardOf(value), true
}

// Value returns what a message with this key (nil without one) and payload is placed by: the key, or the canonical text of a field,
// which points into the payload or the scratch. ok is false if it has none.
func (l *Layout) Value(key, payload []byte, scratch *Scratch) (value []byte, ok bool) {
	if l.kind == ByField {
		return l.path.Find(payload, scratch)
	}
	return key, key != nil
}

// Hash returns the hash of a value: XXH64 with seed 0.
func Hash(value []byte) uint64 { return xxhash.Sum64(value) }

// Shard returns the shard of a hash: the hashes are divided into as many equal ranges as there are shards. So twice as many shards
// divide each shard in two: the messages of shard n go to 2n and 2n+1.
func Shard(hash uint64, shards uint32) uint32 {
	high, _ := bits.Mul64(hash, uint64(shards))
	return uint32(high) //nolint:gosec // below shards
}
