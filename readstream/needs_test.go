package readstream

import "testing"

// TestNeeds: what streams have not handed out is needed, that of the slowest one of a category.
func TestNeeds(t *testing.T) {
	h := newHarness(t)
	shard := shardID(0, 1)
	for range 20 {
		h.write(1000, shard)
	}
	entries, err := h.engine.Read(t.Context(), shard, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if needs := h.server.Needs(); len(needs) != 0 {
		t.Errorf("without streams: %v", needs)
	}
	slow, _ := h.open(earliest)
	slow.heartbeat()
	fast, _ := h.open(earliest, withCredits(100, 1_000_000))
	fast.entries(20)
	fast.heartbeat()
	if from := h.server.Needs()[testCategoryID]; from == 0 || from > entries[0].Time {
		t.Errorf("needed from %d, the first one is of %d", from, entries[0].Time)
	}
	slow.credit(5, 1_000_000)
	slow.entries(5)
	slow.heartbeat()
	if from := h.server.Needs()[testCategoryID]; from <= entries[0].Time || from > entries[5].Time {
		t.Errorf("needed from %d, the sixth one is of %d", from, entries[5].Time)
	}
	slow.close()
	fast.close()
	h.close()
	if needs := h.server.Needs(); len(needs) != 0 {
		t.Errorf("after the end: %v", needs)
	}
	h.restart()
}
