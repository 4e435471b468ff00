package record

import (
	"strconv"
	"strings"
)

// ShardID names a physical shard: one append-only metadata log. It is the category's id (32 bits), the logical shard (16 bits) and the
// writer slot (16 bits), from the high bits down, so ids sort by category, then logical shard.
type ShardID uint64

// MakeShardID returns the ShardID of its parts.
func MakeShardID(category uint32, logical, writer uint16) ShardID {
	return ShardID(category)<<32 | ShardID(logical)<<16 | ShardID(writer)
}

// Category returns the id of the category.
func (s ShardID) Category() uint32 { return uint32(s >> 32) }

// Logical returns the logical shard within the category.
func (s ShardID) Logical() uint16 { return uint16(s >> 16) }

// Writer returns the writer slot within the logical shard.
func (s ShardID) Writer() uint16 { return uint16(s) }

// String returns "category/logical/writer" in decimal, for example "7/0/1".
func (s ShardID) String() string {
	b := make([]byte, 0, 22) // 10 + 1 + 5 + 1 + 5
	b = strconv.AppendUint(b, uint64(s.Category()), 10)
	b = append(b, '/')
	b = strconv.AppendUint(b, uint64(s.Logical()), 10)
	b = append(b, '/')
	b = strconv.AppendUint(b, uint64(s.Writer()), 10)
	return string(b)
}

// ParseShardID parses exactly the output of [ShardID.String]: an id has one text, which can serve as a key. The error is an
// [InvalidError].
func ParseShardID(text string) (ShardID, error) {
	refuse := func(reason string) (ShardID, error) {
		return 0, &InvalidError{What: "shard id", Value: shortened(text), Reason: reason}
	}
	category, rest, ok1 := strings.Cut(text, "/")
	logical, writer, ok2 := strings.Cut(rest, "/")
	if !ok1 || !ok2 {
		return refuse(`want "category/logical/writer", for example "7/0/1"`)
	}
	c, err1 := strconv.ParseUint(category, 10, 32)
	l, err2 := strconv.ParseUint(logical, 10, 16)
	w, err3 := strconv.ParseUint(writer, 10, 16)
	if err1 != nil || err2 != nil || err3 != nil {
		return refuse("category is a number up to 4294967295, logical shard and writer up to 65535")
	}
	id := MakeShardID(uint32(c), uint16(l), uint16(w))
	if id.String() != text {
		return refuse("numbers have no leading zeros")
	}
	return id, nil
}

// LSN is the sequence number of a record in one metadata log. LSNs of a log
// are dense and increasing; the first is [FirstLSN], so 0 means "none".
type LSN uint64

// FirstLSN is the LSN of the first record of every log.
const FirstLSN LSN = 1
