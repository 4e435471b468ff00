package remote

import (
	"math"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// The conversions share bytes of records: neither side changes them.

func ids(shards []uint64) []record.ShardID {
	out := make([]record.ShardID, len(shards))
	for i, s := range shards {
		out[i] = record.ShardID(s)
	}
	return out
}

func numbers[T ~uint64](in []T) []uint64 {
	out := make([]uint64, len(in))
	for i, v := range in {
		out[i] = uint64(v)
	}
	return out
}

func stateToProto(s metalog.State) *scribev1.ShardState {
	return &scribev1.ShardState{
		Shard:     uint64(s.Shard),
		FirstLsn:  uint64(s.FirstLSN),
		NextLsn:   uint64(s.NextLSN),
		Epoch:     s.Epoch,
		Sealed:    s.Sealed,
		LastTime:  s.LastTime,
		Watermark: s.Watermark,
	}
}

func stateFromProto(s *scribev1.ShardState) metalog.State {
	return metalog.State{
		Shard:     record.ShardID(s.GetShard()),
		FirstLSN:  record.LSN(s.GetFirstLsn()),
		NextLSN:   record.LSN(s.GetNextLsn()),
		Epoch:     s.GetEpoch(),
		Sealed:    s.GetSealed(),
		LastTime:  s.GetLastTime(),
		Watermark: s.GetWatermark(),
	}
}

func statesToProto(states []metalog.State) []*scribev1.ShardState {
	out := make([]*scribev1.ShardState, len(states))
	for i, s := range states {
		out[i] = stateToProto(s)
	}
	return out
}

func statesFromProto(states []*scribev1.ShardState) []metalog.State {
	out := make([]metalog.State, len(states))
	for i, s := range states {
		out[i] = stateFromProto(s)
	}
	return out
}

func appendToProto(a *metalog.Append) *scribev1.AppendRequest {
	req := &scribev1.AppendRequest{OldestBlob: a.OldestBlob, Appends: make([]*scribev1.ShardAppend, len(a.Shards))}
	for i := range a.Shards {
		s := &a.Shards[i]
		req.Appends[i] = &scribev1.ShardAppend{
			Shard:     uint64(s.Shard),
			Epoch:     s.Epoch,
			ExpectLsn: uint64(s.ExpectLSN),
			Records:   s.Records,
			Sequences: sequencesToProto(s.Sequences),
		}
	}
	return req
}

func appendFromProto(req *scribev1.AppendRequest) *metalog.Append {
	a := &metalog.Append{OldestBlob: req.GetOldestBlob(), Shards: make([]metalog.ShardAppend, len(req.GetAppends()))}
	for i, s := range req.GetAppends() {
		a.Shards[i] = metalog.ShardAppend{
			Shard:     record.ShardID(s.GetShard()),
			Epoch:     s.GetEpoch(),
			ExpectLSN: record.LSN(s.GetExpectLsn()),
			Records:   s.GetRecords(),
			Sequences: sequencesFromProto(s.GetSequences()),
		}
	}
	return a
}

func sequencesToProto(in []metalog.Sequence) []*scribev1.ProducerSequence {
	if len(in) == 0 {
		return nil
	}
	out := make([]*scribev1.ProducerSequence, len(in))
	for i, q := range in {
		out[i] = sequenceToProto(q)
	}
	return out
}

func sequencesFromProto(in []*scribev1.ProducerSequence) []metalog.Sequence {
	if len(in) == 0 {
		return nil
	}
	out := make([]metalog.Sequence, len(in))
	for i, q := range in {
		out[i] = sequenceFromProto(q)
	}
	return out
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

func entriesFromProto(in []*scribev1.Entry) []metalog.Entry {
	if len(in) == 0 {
		return nil
	}
	out := make([]metalog.Entry, len(in))
	for i, e := range in {
		out[i] = metalog.Entry{LSN: record.LSN(e.GetLsn()), Time: e.GetTime(), Data: e.GetData()}
	}
	return out
}

func updatesToProto(in []metalog.Update) *scribev1.SubscribeResponse {
	res := &scribev1.SubscribeResponse{Updates: make([]*scribev1.ShardUpdate, len(in))}
	for i := range in {
		u := &in[i]
		res.Updates[i] = &scribev1.ShardUpdate{
			Shard:     uint64(u.Shard),
			Entries:   entriesToProto(u.Entries),
			NextLsn:   uint64(u.NextLSN),
			Watermark: u.Watermark,
			Sealed:    u.Sealed,
			TrimmedTo: uint64(u.TrimmedTo),
		}
	}
	return res
}

func updatesFromProto(res *scribev1.SubscribeResponse) []metalog.Update {
	out := make([]metalog.Update, len(res.GetUpdates()))
	for i, u := range res.GetUpdates() {
		out[i] = metalog.Update{
			Shard:     record.ShardID(u.GetShard()),
			TrimmedTo: record.LSN(u.GetTrimmedTo()),
			Entries:   entriesFromProto(u.GetEntries()),
			NextLSN:   record.LSN(u.GetNextLsn()),
			Watermark: u.GetWatermark(),
			Sealed:    u.GetSealed(),
		}
	}
	return out
}

// annotationKind makes kinds that no engine has the invalid one.
func annotationKind(kind uint32) metalog.AnnotationKind {
	if kind > math.MaxUint8 {
		return 0
	}
	return metalog.AnnotationKind(kind)
}

func notesToProto(in []metalog.Annotation) []*scribev1.Annotation {
	out := make([]*scribev1.Annotation, len(in))
	for i := range in {
		n := &in[i]
		out[i] = &scribev1.Annotation{Shard: uint64(n.Shard), Lsn: uint64(n.LSN), Kind: uint32(n.Kind), Data: n.Data}
	}
	return out
}

func notesFromProto(in []*scribev1.Annotation) []metalog.Annotation {
	out := make([]metalog.Annotation, len(in))
	for i, n := range in {
		out[i] = metalog.Annotation{
			Shard: record.ShardID(n.GetShard()), LSN: record.LSN(n.GetLsn()), Kind: annotationKind(n.GetKind()), Data: n.GetData(),
		}
	}
	return out
}
