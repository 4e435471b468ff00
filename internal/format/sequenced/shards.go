package sequenced

import (
	"scribe/internal/format/record"
)

// Logical is the logical shard of the logs that a sequencer keeps. Categories have far fewer (the control plane's limit is 10,000).
const Logical uint16 = record.MaxLogicalShard

// Writer slots of the two logs. Other slots of the logical shard are reserved.
const (
	slotLog       uint16 = 0
	slotPositions uint16 = 1
)

// Log returns the shard of a category's sequenced log.
func Log(category uint32) record.ShardID { return record.MakeShardID(category, Logical, slotLog) }

// Positions returns the shard of a category's log of positions.
func Positions(category uint32) record.ShardID {
	return record.MakeShardID(category, Logical, slotPositions)
}

// Reserved reports whether a shard belongs to a sequencer, so that no messages are written to it.
func Reserved(shard record.ShardID) bool { return shard.Logical() == Logical }

// IsLog reports whether a shard is the sequenced log of its category.
func IsLog(shard record.ShardID) bool { return shard == Log(shard.Category()) }
