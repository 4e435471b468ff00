package readstream

import (
	"testing"
	"time"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

func withBuckets(scheme bucket.Scheme, set bucket.Set) option {
	return func(s *scribev1.StreamStart) {
		s.Buckets = &scribev1.StreamBuckets{Sharing: uint32(scheme.Sharing), Buckets: scheme.Buckets, Set: set}
	}
}

// ofBuckets opens a stream that must bring all pointers of some buckets, and no others.
func (h *harness) ofBuckets(scheme bucket.Scheme, set bucket.Set, opts ...option) *client {
	c := h.dial(append(opts, withBuckets(scheme, set))...)
	c.sparse = func(shard record.ShardID, from record.LSN) (record.LSN, bool) {
		least, found := record.LSN(0), false
		for b := range set.Each() {
			if next, ok := scheme.Next(shard, b, from); ok && (!found || next < least) {
				least, found = next, true
			}
		}
		return least, found
	}
	c.opened()
	return c
}

// Members of a group are sent the pointers of their buckets, from history and from the tail, and each pointer goes to one of them.
func TestBuckets(t *testing.T) {
	for _, window := range []time.Duration{0, time.Hour} {
		h := newHarness(t)
		all := shards(3)
		for range 40 {
			h.write(1, all...)
		}
		scheme := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}
		sets := []bucket.Set{bucket.NewSet(16), bucket.NewSet(16), bucket.NewSet(16)}
		for b := range uint32(16) {
			sets[b%3].Add(b)
		}
		var members []*client
		for _, set := range sets {
			members = append(members, h.ofBuckets(scheme, set, earliest, plenty, withWindow(window)))
		}
		for range 40 {
			h.write(1, all...)
		}
		seen := map[[2]uint64]bool{}
		for i, c := range members {
			want := 0
			for _, shard := range all {
				for b := range sets[i].Each() {
					want += int(scheme.Count(shard, b, 1, 81))
				}
			}
			c.entries(want)
			_ = c.heartbeat()
			for _, e := range c.got {
				place := [2]uint64{e.GetShard(), e.GetLsn()}
				if seen[place] || !sets[i].Has(scheme.Of(record.ShardID(e.GetShard()), record.LSN(e.GetLsn()))) {
					t.Fatalf("shard %d, LSN %d went to the wrong member, or to two", e.GetShard(), e.GetLsn())
				}
				seen[place] = true
			}
		}
		if len(seen) != 3*80 {
			t.Errorf("%d pointers came, want %d", len(seen), 3*80)
		}
		if n := h.metric("filtered_pointers_total"); n != 2*3*80 {
			t.Errorf("%v pointers were left out", n)
		}
	}
}

// Pointers of others take no credits, and time goes on over them.
func TestBucketsTakeNoCredits(t *testing.T) {
	h := newHarness(t)
	shard := shardID(0, 1)
	for range 100 {
		h.write(1, shard)
	}
	scheme, set := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 64}, bucket.NewSet(64)
	set.Add(7)
	want := int(scheme.Count(shard, 7, 1, 101))
	c := h.ofBuckets(scheme, set, earliest, withCredits(uint32(want), 1<<30), withWindow(0))
	c.entries(want)
	last := c.got[want-1].GetTime()
	c.until(func(r *scribev1.StreamResponse) bool {
		return r.GetHeartbeat().GetWatermark() > last && r.GetHeartbeat().GetPending() == 0
	})
}

// With buckets of logical shards, only the shards of the stream's buckets are followed.
func TestBucketsOfShards(t *testing.T) {
	h := newHarness(t)
	all := shards(10)
	h.write(1, all...)
	scheme, set := bucket.Scheme{Sharing: bucket.Shards, Buckets: 4}, bucket.NewSet(4)
	set.Add(1)
	c := h.ofBuckets(scheme, set, earliest, plenty)
	h.write(1, all...)
	mine := 0
	for _, shard := range all {
		if shard.Logical()%4 == 1 {
			mine++
		}
	}
	c.entries(2 * mine)
	if n := h.metric("shards"); n != float64(mine) {
		t.Errorf("%v shards are followed, want %d", n, mine)
	}
	if n := h.metric("filtered_pointers_total"); n != 0 {
		t.Errorf("%v pointers were read for nothing", n)
	}
}

func TestBucketsAreChecked(t *testing.T) {
	h := newHarness(t)
	for _, b := range []*scribev1.StreamBuckets{
		{},
		{Sharing: 1, Buckets: 3, Set: []byte{1}},
		{Sharing: 3, Buckets: 4, Set: []byte{1}},
		{Sharing: 1, Buckets: 4, Set: []byte{16}},
		{Sharing: 1, Buckets: 4096, Set: []byte{1}},
	} {
		wantReason(t, h.dial(func(s *scribev1.StreamStart) { s.Buckets = b }).end(), scribev1.Reason_REASON_INVALID)
	}
}
