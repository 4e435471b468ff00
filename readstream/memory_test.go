package readstream

import (
	"runtime"
	"testing"

	scribev1 "scribe/proto/scribe/v1"
)

// What doc.go says of the memory of shards that are idle.
func TestMemoryOfIdleShards(t *testing.T) {
	const streams, n, most = 10, 10_000, 300
	h := newHarness(t)
	h.create(shards(n)...)
	h.open(latest) // the feed and what the engine keeps
	heap := func() int64 {
		var m runtime.MemStats
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for range streams {
		c, _ := h.open(latest, plenty)
		c.until(func(r *scribev1.StreamResponse) bool { return r.GetHeartbeat() != nil })
	}
	each := (heap() - before) / (streams * n)
	t.Logf("%d bytes a shard", each)
	if each > most+100 { // the clients of the test keep positions, too
		t.Errorf("a stream holds %d bytes for an idle shard, expected about %d", each, most)
	}
}
