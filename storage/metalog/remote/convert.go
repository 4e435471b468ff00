package remote

import (
	"math"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// The conversions share the bytes of records: neither side changes them.

// convertAll converts each element. It returns nil for an empty slice.
func convertAll[From, To any](in []From, convert func(From) To) []To {
	if len(in) == 0 {
		return nil
	}
	out := make([]To, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}

func shardIDs(shards []uint64) []record.ShardID {
	return convertAll(shards, func(s uint64) record.ShardID { return record.ShardID(s) })
}

func numbers[T ~uint64](in []T) []uint64 {
	return convertAll(in, func(v T) uint64 { return uint64(v) })
}

func stateToProto(s metalog.State) *scribev1.ShardState {
	return &scribev1.ShardState{
		Shard:      uint64(s.Shard),
		FirstLsn:   uint64(s.FirstLSN),
		NextLsn:    uint64(s.NextLSN),
		Epoch:      s.Epoch,
		Sealed:     s.Sealed,
		LastTime:   s.LastTime,
		Watermark:  s.Watermark,
		Origin:     uint64(s.Origin),
		OriginTime: s.OriginTime,
		Removed:    s.Removed,
	}
}

func stateFromProto(s *scribev1.ShardState) metalog.State {
	return metalog.State{
		Shard:      record.ShardID(s.GetShard()),
		FirstLSN:   record.LSN(s.GetFirstLsn()),
		NextLSN:    record.LSN(s.GetNextLsn()),
		Epoch:      s.GetEpoch(),
		Sealed:     s.GetSealed(),
		LastTime:   s.GetLastTime(),
		Watermark:  s.GetWatermark(),
		Origin:     record.LSN(s.GetOrigin()),
		OriginTime: s.GetOriginTime(),
		Removed:    s.GetRemoved(),
	}
}

func positionToProto(p metalog.Position) *scribev1.ShardPosition {
	return &scribev1.ShardPosition{Shard: uint64(p.Shard), Lsn: uint64(p.LSN)}
}

func positionFromProto(p *scribev1.ShardPosition) metalog.Position {
	return metalog.Position{Shard: record.ShardID(p.GetShard()), LSN: record.LSN(p.GetLsn())}
}

func unusedToProto(u metalog.Unused) *scribev1.UnusedShard {
	return &scribev1.UnusedShard{Shard: uint64(u.Shard), Epoch: u.Epoch}
}

func unusedFromProto(u *scribev1.UnusedShard) metalog.Unused {
	return metalog.Unused{Shard: record.ShardID(u.GetShard()), Epoch: u.GetEpoch()}
}

func appendToProto(a *metalog.Append) *scribev1.AppendRequest {
	return &scribev1.AppendRequest{OldestBlob: a.OldestBlob, Appends: convertAll(a.Shards, func(s metalog.ShardAppend) *scribev1.ShardAppend {
		return &scribev1.ShardAppend{
			Shard: uint64(s.Shard), Epoch: s.Epoch, ExpectLsn: uint64(s.ExpectLSN),
			Records: s.Records, Sequences: convertAll(s.Sequences, sequenceToProto),
		}
	})}
}

func appendFromProto(req *scribev1.AppendRequest) *metalog.Append {
	return &metalog.Append{OldestBlob: req.GetOldestBlob(), Shards: convertAll(req.GetAppends(), func(s *scribev1.ShardAppend) metalog.ShardAppend {
		return metalog.ShardAppend{
			Shard: record.ShardID(s.GetShard()), Epoch: s.GetEpoch(), ExpectLSN: record.LSN(s.GetExpectLsn()),
			Records: s.GetRecords(), Sequences: convertAll(s.GetSequences(), sequenceFromProto),
		}
	})}
}

func sequenceToProto(q metalog.Sequence) *scribev1.ProducerSequence {
	return &scribev1.ProducerSequence{Producer: q.Producer, Epoch: q.Epoch, First: q.First, Last: q.Last}
}

func sequenceFromProto(q *scribev1.ProducerSequence) metalog.Sequence {
	return metalog.Sequence{Producer: q.GetProducer(), Epoch: q.GetEpoch(), First: q.GetFirst(), Last: q.GetLast()}
}

func producerToProto(p metalog.ProducerState) *scribev1.ProducerState {
	return &scribev1.ProducerState{Producer: p.Producer, Epoch: p.Epoch, Next: p.Next}
}

func producerFromProto(p *scribev1.ProducerState) metalog.ProducerState {
	return metalog.ProducerState{Producer: p.GetProducer(), Epoch: p.GetEpoch(), Next: p.GetNext()}
}

func entriesToProto(in []metalog.Entry) []*scribev1.Entry {
	if len(in) == 0 {
		return nil
	}
	all := make([]scribev1.Entry, len(in)) // one allocation
	out := make([]*scribev1.Entry, len(in))
	for i := range in {
		e := &all[i]
		e.Lsn, e.Time, e.Data = uint64(in[i].LSN), in[i].Time, in[i].Data
		out[i] = e
	}
	return out
}

func entryFromProto(e *scribev1.Entry) metalog.Entry {
	return metalog.Entry{LSN: record.LSN(e.GetLsn()), Time: e.GetTime(), Data: e.GetData()}
}

func updateToProto(u metalog.Update) *scribev1.ShardUpdate {
	return &scribev1.ShardUpdate{
		Shard: uint64(u.Shard), TrimmedTo: uint64(u.TrimmedTo), Entries: entriesToProto(u.Entries),
		NextLsn: uint64(u.NextLSN), Watermark: u.Watermark, Sealed: u.Sealed,
	}
}

func updateFromProto(u *scribev1.ShardUpdate) metalog.Update {
	return metalog.Update{
		Shard: record.ShardID(u.GetShard()), TrimmedTo: record.LSN(u.GetTrimmedTo()), Entries: convertAll(u.GetEntries(), entryFromProto),
		NextLSN: record.LSN(u.GetNextLsn()), Watermark: u.GetWatermark(), Sealed: u.GetSealed(),
	}
}

// annotationKind converts a kind. Numbers out of range become the invalid kind.
func annotationKind(kind uint32) metalog.AnnotationKind {
	if kind > math.MaxUint8 {
		return 0
	}
	return metalog.AnnotationKind(kind)
}

func noteToProto(n metalog.Annotation) *scribev1.Annotation {
	return &scribev1.Annotation{Shard: uint64(n.Shard), Lsn: uint64(n.LSN), Kind: uint32(n.Kind), Data: n.Data}
}

func noteFromProto(n *scribev1.Annotation) metalog.Annotation {
	return metalog.Annotation{
		Shard: record.ShardID(n.GetShard()), LSN: record.LSN(n.GetLsn()), Kind: annotationKind(n.GetKind()), Data: n.GetData(),
	}
}
