package readstream

import (
	"slices"
	"testing"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Streams of one category share what follows its tails: their number costs the engine nothing.
func TestStreamsShareSubscriptions(t *testing.T) {
	h := newHarness(t)
	all := shards(10)
	h.write(1, all...)
	streams := make([]*client, 200)
	for i := range streams {
		window := withWindow(time.Duration(i%3) * time.Second)
		streams[i], _ = h.open(earliest, plenty, window)
	}
	h.write(1, all...)
	for _, c := range streams {
		c.entries(20)
	}
	if n := h.metric("subscriptions"); n != 1 {
		t.Errorf("%v subscriptions for %d streams", n, len(streams))
	}
	if looks, most := h.metric("looks_total"), float64(len(streams)); looks > most {
		t.Errorf("%v looks for two writes read by %v streams", looks, most)
	}
	for _, c := range streams {
		c.close()
	}
	if n := h.metric("subscriptions"); n != 0 {
		t.Errorf("%v subscriptions without streams", n)
	}
}

// A shard that does not answer keeps back what its window says, for as long as it is so: the stream lives, and ends only when that
// lasts for too long.
func TestStalledShard(t *testing.T) {
	quick := func(c *Config) { c.ReadGrace = time.Millisecond }
	stalled, other := shardID(0, 1), shardID(1, 1)
	write := func(h *harness) {
		h.write(1, stalled, other) // of one time, the stalled shard first
		h.write(1, other)
	}
	t.Run("unbounded", func(t *testing.T) {
		h := newHarness(t, quick)
		write(h)
		release := h.log.stall(stalled)
		c, _ := h.open(earliest, plenty)
		c.entries(2)
		h.write(1, other)
		c.entries(3)
		if b := c.heartbeat(); b.GetPending() != 1 {
			t.Errorf("%d pointers pending", b.GetPending())
		}
		release()
		c.entries(4)
	})
	t.Run("window", func(t *testing.T) {
		h := newHarness(t, quick)
		write(h)
		release := h.log.stall(stalled)
		c, _ := h.open(earliest, plenty, withWindow(time.Hour)) // nothing has waited for so long
		_ = c.heartbeat()
		release()
		c.entries(3)
	})
	t.Run("strict", func(t *testing.T) {
		h := newHarness(t, quick)
		write(h)
		release := h.log.stall(stalled)
		c, _ := h.open(earliest, plenty, withWindow(0))
		for range 3 {
			if b := c.heartbeat(); b.GetPending() != 3 || len(c.got) > 0 {
				t.Fatalf("%d pointers pending, %d came", b.GetPending(), len(c.got))
			}
		}
		release()
		c.entries(3)
		if !slices.IsSortedFunc(c.got, inTotalOrder) {
			t.Error("not in order")
		}
	})
	t.Run("for too long", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *harness) {
			write(h)
			h.log.stall(stalled)
			c, _ := h.open(earliest, plenty, withWindow(0))
			wantReason(t, c.end(), scribev1.Reason_REASON_NO_BACKEND)
		}, quick, func(c *Config) { c.ReadTimeout, c.FailAfter = 10*time.Millisecond, 20*time.Millisecond })
	})
}

func TestTotalShards(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxShards, c.TotalShards = 10, 15 })
	h.create(shards(10)...)
	first, _ := h.open()
	wantReason(t, h.dial().end(), scribev1.Reason_REASON_OVERLOADED)
	if _, o := h.open(func(s *scribev1.StreamStart) { s.LogicalShards = []uint32{1, 2, 3} }); len(o.GetShards()) != 3 {
		t.Errorf("shards %v", o.GetShards())
	}
	first.close()
	h.open()
}

// A stream hears of a shard at the same time by the watch, by looks, and from others that follow it: it joins once.
func TestAppearingShardsAreTakenOnce(t *testing.T) {
	h := newHarness(t)
	streams := make([]*client, 20)
	for i := range streams {
		streams[i], _ = h.open(latest, plenty, withWindow(0))
	}
	var all []record.ShardID
	for i := range 50 {
		all = append(all, shardID(i, 1))
		h.write(1, all[i])
		h.write(1, all...)
	}
	total := 50 + 50*51/2
	for _, c := range streams {
		c.entries(total)
		if !slices.IsSortedFunc(c.got, inTotalOrder) {
			t.Fatal("not in order")
		}
	}
}
