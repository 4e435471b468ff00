package readstream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// byKey makes the test's category one that places messages by key, and returns it as it is after shard 3 was split, which only the control
// plane knows.
func (h *harness) byKey() (split *scribev1.Category) {
	cat := proto.CloneOf(h.categories.mu.known[testCategory])
	cat.ShardBy = scribev1.ShardBy_SHARD_BY_KEY
	h.categories.set(cat)
	split = proto.CloneOf(cat)
	split.Lineage = []*scribev1.ShardLineage{{Shard: 3 + scribev1.ShardFamily, From: 3}}
	split.Ranges = []*scribev1.ShardRange{{Shard: 3}, {Shard: 3 + scribev1.ShardFamily, From: 1 << 63}}
	h.categories.behind(testCategory, split)
	return split
}

// A stream that runs while a shard is split is sent away before it sends anything of the new one, although its server has not heard of the
// split. The next one sends in the order of persisted times, whatever its window.
func TestSplitShardIsReadInOrder(t *testing.T) {
	h := newHarness(t)
	h.byKey()
	parent, child := shardID(3, 1), shardID(3+scribev1.ShardFamily, 1)
	h.write(1, parent)
	c, o := h.open(earliest, plenty)
	c.entries(1)
	if o.GetWindow() != nil {
		t.Fatalf("a window of %v before the split", o.GetWindow())
	}
	h.write(1, child)
	if r := c.evicted(); len(r) != 1 || r[0].GetShard() != uint64(parent) || r[0].GetLsn() != 2 {
		t.Errorf("evicted at %v", r)
	}
	if len(c.got) != 1 {
		t.Errorf("%d entries were sent before the stream was sent away", len(c.got))
	}
	for range 20 {
		h.write(1, child)
		h.write(1, parent)
	}
	c, o = h.open(earliest, plenty, withWindow(time.Hour))
	if w := o.GetWindow(); w == nil || w.AsDuration() != 0 {
		t.Errorf("the window that holds is %v", w)
	}
	c.entries(42)
	for i, e := range c.got[2:] {
		if want := []record.ShardID{child, parent}[i%2]; e.GetShard() != uint64(want) {
			t.Fatalf("entry %d is of shard %v, want %v", i+2, record.ShardID(e.GetShard()), want)
		}
	}
}

// A shard that was added, and not split off, is read by the streams that run.
func TestAddedShardIsRead(t *testing.T) {
	h := newHarness(t)
	grown := h.byKey()
	grown.Lineage, grown.Ranges, grown.Shards = nil, nil, 200
	h.write(1, shardID(3, 1))
	c, _ := h.open(earliest, plenty)
	c.entries(1)
	h.write(1, shardID(150, 1))
	c.entries(2)
}
