package readstream

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// All streams of a repeatable category send what they send in one order, whatever window they ask for and wherever they begin, while
// writers run and shards appear.
func TestRepeatableCategoryHasOneOrder(t *testing.T) {
	h := newHarness(t)
	cat := proto.CloneOf(h.categories.mu.known[testCategory])
	cat.Repeatable = scribev1.Repeatability_REPEATABILITY_BOUND
	h.categories.set(cat)
	const rounds, most = 30, 10
	total := 0
	var streams []*client
	for i := range rounds {
		if i%6 == 0 {
			c, o := h.open(earliest, plenty, withWindow(time.Duration(i)*time.Minute))
			if w := o.GetWindow(); w == nil || w.AsDuration() != 0 {
				t.Fatalf("the window that holds is %v", w)
			}
			streams = append(streams, c)
		}
		for k := range 1 + i%most {
			h.write(1, shardID((i+k)%most, 0))
			total++
		}
	}
	var running sync.WaitGroup
	for _, c := range streams {
		running.Go(func() {
			for len(c.got) < total {
				select {
				case r := <-c.out:
					c.got = append(c.got, r.GetEntries().GetEntries()...)
				case <-time.After(patience):
					t.Errorf("%d entries of %d", len(c.got), total)
					return
				}
			}
		})
	}
	running.Wait()
	first := streams[0].got
	for n, c := range streams {
		for i, e := range c.got {
			if e.GetShard() != first[i].GetShard() || e.GetLsn() != first[i].GetLsn() {
				t.Fatalf("stream %d: entry %d is LSN %d of shard %v, it was another one", n, i, e.GetLsn(), record.ShardID(e.GetShard()))
			}
		}
	}
	// One that goes on in the middle goes on in that order.
	at := map[uint64]uint64{}
	for _, e := range first[:total/2] {
		at[e.GetShard()] = e.GetLsn() + 1
	}
	var resume []*scribev1.ShardPosition
	for shard, lsn := range at {
		resume = append(resume, &scribev1.ShardPosition{Shard: shard, Lsn: lsn})
	}
	c, _ := h.open(resumeAt(resume), plenty)
	c.entries(total - total/2)
	for i, e := range c.got {
		if want := first[total/2+i]; e.GetShard() != want.GetShard() || e.GetLsn() != want.GetLsn() {
			t.Fatalf("resumed: entry %d is LSN %d of shard %v", i, e.GetLsn(), record.ShardID(e.GetShard()))
		}
	}
}

// A stream that runs while its category becomes repeatable, or ceases to be, is sent away, to be opened with the window that holds now.
func TestRepeatabilityChanges(t *testing.T) {
	h := newHarness(t)
	h.write(1, shardID(0, 1))
	c, o := h.open(earliest, plenty)
	c.entries(1)
	if o.GetWindow() != nil {
		t.Errorf("a window of %v", o.GetWindow())
	}
	cat := proto.CloneOf(h.categories.mu.known[testCategory])
	cat.Repeatable = scribev1.Repeatability_REPEATABILITY_BOUND
	h.categories.set(cat)
	if r := c.evicted(); len(r) != 1 || r[0].GetLsn() != 2 {
		t.Errorf("evicted with %v", r)
	}
}
