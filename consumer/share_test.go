package consumer

import (
	"testing"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/bucket"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// What is passed over, since retention took it or nothing in it is wanted, may be behind a payload in the queue that is not delivered any
// more, since its bucket is to be given back. Then it is not behind that bucket either: whoever has it next begins with the payload.
func TestNothingIsPassedOverBehindAnUndeliveredPayload(t *testing.T) {
	const lsn, to = 40, 100
	shard := record.MakeShardID(7, 0, 1)
	for name, passOver := range map[string]func(*testing.T, *categoryShare) *streamItem{
		"a gap": func(t *testing.T, s *categoryShare) *streamItem {
			r, err := s.passOver(passedGap, shard, lsn+1, to)
			if err != nil || len(r.places) != 16 || r.from != lsn+1 {
				t.Fatal(r.from, len(r.places), err)
			}
			return &streamItem{kind: itemGap, pos: r.places[0], lost: r.places, Payload: payload.Payload{LSN: r.from}, gap: &GapError{From: uint64(r.from), To: to}}
		},
		"pointers that were left out": func(t *testing.T, s *categoryShare) *streamItem {
			r, err := s.passOver(passedSkip, shard, lsn+1, to)
			if err != nil || len(r.places) != 16 || r.pointers != to-lsn-1 {
				t.Fatal(len(r.places), r.pointers, err)
			}
			it := &streamItem{kind: itemSkipped, runs: map[*shardPosition]record.LSN{}}
			for _, p := range r.places {
				it.runs[p] = p.received
			}
			return it
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c Consumer
			s := newShare(bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}, shard.Category())
			if err := s.installBuckets(bucket.All(16), []*scribev1.GroupShardPosition{{Shard: uint64(shard), Low: lsn}}); err != nil {
				t.Fatal(err)
			}
			p, deliver, err := s.receiveEntry(shard, lsn)
			if err != nil || !deliver {
				t.Fatal(deliver, err)
			}
			queue := []*streamItem{{kind: itemPayload, pos: p, Payload: payload.Payload{LSN: lsn}}, passOver(t, s)}
			given := bucket.NewSet(16)
			given.Add(p.bucket)
			s.drainBuckets(given)
			if s.claims(queue[0]) {
				t.Error("a payload of a bucket that is to be given back is delivered")
			}
			if !s.claims(queue[1]) {
				t.Error("what is passed over in other buckets is not")
			}
			c.takeItem(queue[1], func(error) bool { return true }, nil)
			positions, held := s.unsavedPositions()
			if len(positions) != 1 || held.Len() != 16 {
				t.Fatalf("%v of %d buckets", positions, held.Len())
			}
			at, err := s.parsePosition(positions[0])
			if err != nil {
				t.Fatal(err)
			}
			for b := range held.Each() {
				want := record.LSN(to)
				if b == p.bucket {
					want = lsn
				}
				// Between the place and what comes next of the bucket there is nothing.
				next, _ := s.scheme.Next(shard, b, want)
				if got, _ := s.scheme.Next(shard, b, at.At(b).LSN); got != next {
					t.Errorf("bucket %d is committed up to LSN %d, want %d", b, at.At(b).LSN, want)
				}
			}
		})
	}
}

// A bounded iteration reads nothing of a shard that its checkpoint knows and the stream, when it opens, does not: neither entries that
// come nevertheless, nor the shard if it joins later.
func TestShardsThatTheFirstStreamDoesNotHave(t *testing.T) {
	here, gone := record.MakeShardID(7, 0, 1), record.MakeShardID(7, 1, 1)
	var c Consumer
	sh := newWholeShare(&checkpoint.Checkpoint{CategoryID: 7, Positions: []checkpoint.Position{{Shard: here, LSN: 5}, {Shard: gone, LSN: 9}}})
	c.mu.share = sh
	sh.rewindToDelivered(true)
	sh.fillStart(&scribev1.StreamStart{}, func(record.ShardID) bool { return true })
	s := &iterationSession{c: &c, queue: newQueue(1 << 20)}
	conn := &streamConnection{s: s}
	if _, err := conn.joinShards(&scribev1.StreamOpened{Shards: []*scribev1.StreamShard{{Shard: uint64(here), Lsn: 5, NextLsn: 6}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if p, deliver, err := sh.receiveEntry(gone, 9); deliver || err != nil {
			t.Fatalf("an entry is delivered at %v: %v", p, err)
		}
		if err := s.addShard(&scribev1.StreamShard{Shard: uint64(gone), Lsn: 1, NextLsn: 20}); err != nil {
			t.Fatal(err)
		}
	}
	if s.isFinished() {
		t.Error("the iteration ends before the shard that there is")
	}
	if _, deliver, err := sh.receiveEntry(here, 5); !deliver || err != nil || !s.isFinished() {
		t.Error(deliver, err, s.isFinished())
	}
}
