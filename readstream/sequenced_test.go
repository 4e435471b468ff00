package readstream

import (
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// sequencedHarness is one whose category is sequenced, and whose test is the sequencer.
func sequencedHarness(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, func(c *Config) { c.SequencedWait = 50 * time.Millisecond })
	h.categories.set(&scribev1.Category{Name: testCategory, Id: testCategoryID, Shards: 100, Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED})
	return h
}

// sequence appends records to the sequenced log, with the positions behind them.
func (h *harness) sequence(recs ...sequenced.Record) {
	h.t.Helper()
	log, at := sequenced.Log(testCategoryID), sequenced.Positions(testCategoryID)
	if _, ok := h.opened[log]; !ok {
		h.create(log, at)
	}
	state := sequenced.NewState()
	a := metalog.Append{Shards: []metalog.ShardAppend{{Shard: log, Epoch: h.opened[log].Epoch}, {Shard: at, Epoch: h.opened[at].Epoch}}}
	for i := range recs {
		a.Shards[0].Records = append(a.Shards[0].Records, sequenced.Append(nil, &recs[i]))
		state.At[recs[i].Source] = recs[i].Next()
	}
	h.next[log] += record.LSN(len(recs))
	state.Next = h.next[log]
	a.Shards[1].Records = state.Whole()
	if _, err := h.engine.Append(h.t.Context(), &a); err != nil {
		h.t.Fatal(err)
	}
}

// sequencedPointer is a record of a source's pointer to 10 messages.
func sequencedPointer(source record.ShardID, lsn record.LSN, offset uint64) sequenced.Record {
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecNone, BlockLen: 100, BlockRawLen: 100, Length: 100, Frames: 1, Messages: 10,
	}
	return sequenced.Record{Kind: sequenced.KindPointer, Source: source, LSN: lsn, Offset: offset, Horizon: int64(1000 + offset), Time: int64(1000 + offset), Pointer: pointer.Append(nil, &p)}
}

// Streams of a sequenced category send its sequenced log, whatever window and logical shards they ask for, from before it exists on; with the
// places where the pointers were, and gaps as gaps.
func TestSequencedCategory(t *testing.T) {
	h := sequencedHarness(t)
	early, opened := h.open(plenty, earliest, withWindow(time.Minute))
	if w := opened.GetWindow(); w == nil || w.AsDuration() != 0 || len(opened.GetShards()) != 1 {
		t.Fatalf("opened with window %v and shards %v", w, opened.GetShards())
	}
	h.write(100, shardID(0, 1), shardID(1, 2))
	h.sequence(sequencedPointer(shardID(1, 2), 1, 0))
	h.sequence(sequenced.Record{Kind: sequenced.KindGap, Source: shardID(0, 1), LSN: 1, To: 4, Cause: sequenced.CauseTrimmed, Offset: 10}, sequencedPointer(shardID(0, 1), 4, 10))
	check := func(c *client) {
		t.Helper()
		gap := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
		if gap.GetFrom() != 2 || gap.GetTo() != 3 || gap.GetReason() != scribev1.Reason_REASON_TRIMMED {
			t.Errorf("gap %v", gap)
		}
		c.entries(2)
		for i, want := range []struct {
			source      record.ShardID
			lsn, offset uint64
		}{{shardID(1, 2), 1, 0}, {shardID(0, 1), 4, 10}} {
			e := c.got[i]
			if record.ShardID(e.GetSourceShard()) != want.source || e.GetSourceLsn() != want.lsn || e.GetOffset() != want.offset || !sequenced.IsLog(record.ShardID(e.GetShard())) {
				t.Errorf("entry %d: %v", i, e)
			}
		}
	}
	check(early)
	late, _ := h.open(plenty, earliest, func(s *scribev1.StreamStart) { s.LogicalShards = []uint32{1} })
	check(late)
	if needs := h.server.Needs(); needs[testCategoryID] != 1000 {
		t.Errorf("needs %v, want the oldest that was sent, by the time in its source", needs)
	}
	again, _ := h.open(plenty, resumeAt([]*scribev1.ShardPosition{{Shard: uint64(sequenced.Log(testCategoryID)), Lsn: 3}}))
	again.entries(1)
	if again.got[0].GetOffset() != 10 {
		t.Errorf("resumed at %v", again.got[0])
	}
}

// A sequencer's stream sends the logs that are sequenced, strictly, and not what it has made of them.
func TestUnsequenced(t *testing.T) {
	h := sequencedHarness(t)
	h.write(100, shardID(0, 1), shardID(1, 2))
	h.sequence(sequencedPointer(shardID(0, 1), 1, 0))
	c, opened := h.open(plenty, earliest, func(s *scribev1.StreamStart) { s.Unsequenced = true })
	if w := opened.GetWindow(); w == nil || w.AsDuration() != 0 || len(opened.GetShards()) != 2 {
		t.Fatalf("opened with window %v and shards %v", w, opened.GetShards())
	}
	c.entries(2)
	h.sequence(sequencedPointer(shardID(1, 2), 1, 10))
	h.write(100, shardID(1, 3))
	c.entries(3)
	for _, e := range c.got {
		if sequenced.Reserved(record.ShardID(e.GetShard())) || e.GetSourceShard() != 0 {
			t.Errorf("%v", e)
		}
	}
	for _, o := range []option{
		func(s *scribev1.StreamStart) {
			s.Unsequenced, s.Resume = true, []*scribev1.ShardPosition{{Shard: uint64(sequenced.Log(testCategoryID)), Lsn: 1}}
		},
		func(s *scribev1.StreamStart) {
			s.Resume = []*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 1}}
		},
	} {
		wantReason(t, h.dial(plenty, o).end(), scribev1.Reason_REASON_INVALID)
	}
}

// Who was acknowledged and then opens a stream finds what was written, as long as a sequencer is not far behind.
func TestAwaitSequencer(t *testing.T) {
	h := sequencedHarness(t)
	h.cfg.SequencedWait = patience
	h.restart()
	h.write(100, shardID(0, 1))
	c := h.dial(plenty, earliest)
	select {
	case r := <-c.out:
		t.Fatalf("opened before anything was sequenced: %v", r)
	case <-time.After(20 * time.Millisecond):
	}
	h.sequence(sequencedPointer(shardID(0, 1), 1, 0))
	if o := c.opened(); o.GetShards()[0].GetNextLsn() != 2 {
		t.Errorf("opened with %v", o.GetShards())
	}
	c.close()
	h.write(100, shardID(0, 1))
	waiting := h.dial(plenty, earliest)
	h.close()
	wantReason(t, waiting.end(), scribev1.Reason_REASON_SHUTTING_DOWN)
	h.cfg.SequencedWait = time.Millisecond
	h.restart()
	if _, o := h.open(plenty, earliest); o.GetShards()[0].GetNextLsn() != 2 {
		t.Errorf("opened with %v", o.GetShards())
	}
}

// A record of the sequenced log that is damaged is a gap; one of a newer version ends the stream.
func TestSequencedDamage(t *testing.T) {
	h := sequencedHarness(t)
	h.sequence(sequencedPointer(shardID(0, 1), 1, 0))
	h.writeRecord([]byte("no record"), sequenced.Log(testCategoryID))
	c, _ := h.open(plenty, earliest)
	gap := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
	if gap.GetFrom() != 2 || gap.GetReason() != scribev1.Reason_REASON_CORRUPT {
		t.Errorf("gap %v", gap)
	}
}
