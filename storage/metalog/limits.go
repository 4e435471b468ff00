package metalog

import (
	"fmt"
	"math"
	"time"

	"scribe/internal/format/record"
)

// Validate reports whether a is within the limits of this package. It returns a wrapped ErrInvalid that names the part, or nil.
// It does not change a.
func (a *Append) Validate() error {
	if err := checkCount("shards in an append", len(a.Shards), MaxAppendShards); err != nil {
		return err
	}
	if a.OldestBlob < 0 {
		return fmt.Errorf("%w: invalid time of the oldest blob %d: want 0 or more", ErrInvalid, a.OldestBlob)
	}
	var size, records, sequences int
	for i := range a.Shards {
		s := &a.Shards[i]
		n, err := s.validate()
		if err != nil {
			return err
		}
		size, records, sequences = size+n, records+len(s.Records), sequences+len(s.Sequences)
		switch {
		case size > MaxAppend:
			return fmt.Errorf("%w: the append has over %d bytes of records: split it", ErrInvalid, MaxAppend)
		case records > MaxAppendRecords:
			return fmt.Errorf("%w: the append has over %d records: split it", ErrInvalid, MaxAppendRecords)
		case sequences > MaxAppendSequences:
			return fmt.Errorf("%w: the append has over %d runs of sequences: split it", ErrInvalid, MaxAppendSequences)
		}
	}
	return checkDistinct(len(a.Shards), func(i int) record.ShardID { return a.Shards[i].Shard })
}

// validate returns the bytes of the shard's records.
func (s *ShardAppend) validate() (size int, err error) {
	if s.Epoch == 0 {
		return 0, fmt.Errorf("%w: shard %v: invalid epoch 0: open the shard first", ErrInvalid, s.Shard)
	}
	if len(s.Records) == 0 {
		return 0, fmt.Errorf("%w: shard %v: no records", ErrInvalid, s.Shard)
	}
	for i, r := range s.Records {
		if len(r) == 0 || len(r) > MaxRecord {
			return 0, fmt.Errorf("%w: shard %v: record %d has %d bytes, want 1 to %d", ErrInvalid, s.Shard, i, len(r), MaxRecord)
		}
		size += len(r)
	}
	for _, q := range s.Sequences {
		if q.First > q.Last || q.Last == math.MaxUint64 {
			return 0, fmt.Errorf("%w: shard %v: producer %d: invalid run of sequences [%d, %d]", ErrInvalid, s.Shard, q.Producer, q.First, q.Last)
		}
	}
	return size, nil
}

// ValidateOpen checks the arguments of [Log.Open].
func ValidateOpen(owner string, shards []record.ShardID) error {
	if len(owner) > MaxOwner {
		return fmt.Errorf("%w: the owner's name has %d bytes, the limit is %d", ErrInvalid, len(owner), MaxOwner)
	}
	if err := ValidateShards(shards); err != nil {
		return err
	}
	return checkDistinct(len(shards), func(i int) record.ShardID { return shards[i] })
}

// ValidateShards checks the arguments of [Log.Tail] and [Log.Seek].
func ValidateShards(shards []record.ShardID) error {
	return checkCount("shards", len(shards), MaxShards)
}

// ValidateRemove checks the arguments of [Log.Remove].
func ValidateRemove(shards []Unused) error {
	if err := checkCount("shards", len(shards), MaxShards); err != nil {
		return err
	}
	return checkDistinct(len(shards), func(i int) record.ShardID { return shards[i].Shard })
}

// ValidateProducers checks the arguments of [Log.Sequences].
func ValidateProducers(producers []uint64) error {
	return checkCount("producers", len(producers), MaxProducers)
}

// ValidateSubscribe checks the arguments of [Log.Subscribe] and returns the heartbeat to use.
func ValidateSubscribe(from []Position, heartbeat time.Duration) (time.Duration, error) {
	if err := checkCount("positions", len(from), MaxShards); err != nil {
		return 0, err
	}
	for _, p := range from {
		if err := ValidatePosition(p.Shard, p.LSN); err != nil {
			return 0, err
		}
	}
	if heartbeat < 0 {
		return 0, fmt.Errorf("%w: invalid heartbeat %v: want 0 or more", ErrInvalid, heartbeat)
	}
	if heartbeat == 0 {
		heartbeat = DefaultHeartbeat
	}
	return max(heartbeat, MinHeartbeat), checkDistinct(len(from), func(i int) record.ShardID { return from[i].Shard })
}

// ValidatePosition checks a position to read from.
func ValidatePosition(shard record.ShardID, from record.LSN) error {
	if from < record.FirstLSN {
		return fmt.Errorf("%w: shard %v: invalid LSN %d: the first is %d", ErrInvalid, shard, from, record.FirstLSN)
	}
	return nil
}

// ReadLimits returns the limits that [Log.Read] applies for the given arguments.
func ReadLimits(maxRecords, maxBytes int) (records, bytes int) {
	if maxRecords <= 0 || maxRecords > MaxReadRecords {
		maxRecords = MaxReadRecords
	}
	if maxBytes <= 0 || maxBytes > MaxReadBytes {
		maxBytes = MaxReadBytes
	}
	return maxRecords, maxBytes
}

func checkCount(what string, n, limit int) error {
	if n < 1 || n > limit {
		return fmt.Errorf("%w: %d %s, want 1 to %d", ErrInvalid, n, what, limit)
	}
	return nil
}

// checkDistinct reports the first shard that occurs twice. With few shards, the usual case, it does not allocate.
func checkDistinct(n int, at func(int) record.ShardID) error {
	const few = 16
	if n <= few {
		for i := range n {
			for j := range i {
				if at(i) == at(j) {
					return twiceError(at(i))
				}
			}
		}
		return nil
	}
	seen := make(map[record.ShardID]struct{}, n)
	for i := range n {
		if _, ok := seen[at(i)]; ok {
			return twiceError(at(i))
		}
		seen[at(i)] = struct{}{}
	}
	return nil
}

func twiceError(s record.ShardID) error {
	return fmt.Errorf("%w: shard %v is listed twice", ErrInvalid, s)
}
