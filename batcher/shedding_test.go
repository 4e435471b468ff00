package batcher

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// sheddingMemory is an accumulator with the usual shares.
type sheddingMemory struct {
	t   testing.TB
	acc accumulator
	now time.Time
}

func newSheddingMemory(t *testing.T) *sheddingMemory {
	cfg := DefaultConfig()
	cfg.MemoryBytes = 64 << 20
	return &sheddingMemory{t: t, acc: newAccumulator(cfg), now: epoch}
}

// admit admits a mebibyte of a category with a priority, and reports whether that was done.
func (m *sheddingMemory) admit(category uint32, p scribev1.Priority) bool {
	m.t.Helper()
	to := logTarget{shard: record.MakeShardID(category, 0, 7), class: 72, settings: &scribev1.Category{Priority: p}}
	in := &parsedRequest{spans: []routedSpan{{frameSpan: frameSpan{frames: make([]frame, 1), bytes: 1 << 20}, target: to}}, results: make([]scribev1.FrameResult, 1)}
	charge := in.memoryCharge()
	if !m.acc.memory.Charge(m.now, charge) {
		return false
	}
	if err := m.acc.admitCategories(m.now, in); err != nil {
		m.acc.memory.Cancel(charge)
		return false
	}
	return true
}

// fill admits as much of a category as it may have, and returns how full the memory is then.
func (m *sheddingMemory) fill(category uint32, p scribev1.Priority) float64 {
	m.t.Helper()
	for m.admit(category, p) {
		if m.acc.memory.Used() > m.acc.memory.Limit() {
			m.t.Fatal("more memory is used than there is")
		}
	}
	return float64(m.acc.memory.Used()) / float64(m.acc.memory.Limit())
}

// free releases all memory of a category.
func (m *sheddingMemory) free(category uint32) {
	t := m.acc.accounts[category]
	m.acc.memory.Release(m.now, t.held)
	m.acc.chargeCategory(t, -t.held)
}

const (
	priorityLow      = scribev1.Priority_PRIORITY_LOW
	priorityHigh     = scribev1.Priority_PRIORITY_HIGH
	priorityCritical = scribev1.Priority_PRIORITY_CRITICAL
)

// TestAlikeUseAllMemory: without others, a category of any priority uses the memory as before.
func TestAlikeUseAllMemory(t *testing.T) {
	for _, p := range []scribev1.Priority{0, priorityLow, priorityCritical} {
		if full := newSheddingMemory(t).fill(1, p); full < 0.75 {
			t.Errorf("priority %v alone fills %.2f of the memory", p, full)
		}
	}
}

// TestLowestPriorityIsShedFirst: where there are others, the lowest priority is refused first, then the next one, and the highest while
// there is any memory is not.
func TestLowestPriorityIsShedFirst(t *testing.T) {
	m := newSheddingMemory(t)
	for _, p := range []scribev1.Priority{priorityLow, priorityHigh, priorityCritical} {
		if !m.admit(uint32(p), p) {
			t.Fatalf("%v was refused by an empty batcher", p)
		}
	}
	for _, tc := range []struct {
		p        scribev1.Priority
		from, to float64
	}{{priorityLow, 0.70, 0.77}, {priorityHigh, 0.83, 0.89}, {priorityCritical, 0.90, 1}} {
		if full := m.fill(uint32(tc.p), tc.p); full < tc.from || full > tc.to {
			t.Errorf("%v fills the memory to %.2f, want %v to %v", tc.p, full, tc.from, tc.to)
		}
	}
	// Others have most of the memory, so the refusal of the highest keeps them out until it has room, also of what becomes free.
	m.free(uint32(priorityLow))
	if m.admit(uint32(priorityLow), priorityLow) || m.admit(uint32(priorityHigh), priorityHigh) {
		t.Error("lower priorities take what became free")
	}
	if !m.admit(uint32(priorityCritical), priorityCritical) {
		t.Error("the highest does not get what became free")
	}
	m.now = m.now.Add(time.Minute)
	if !m.admit(uint32(priorityLow), priorityLow) {
		t.Error("the lowest is kept out for ever")
	}
}

// TestHighestIsNotTouched: whatever lower priorities offer, and whenever memory becomes free, the highest is never refused while it has at most three quarters of
// what is kept for it; and none of lower priority is admitted into that.
func TestHighestIsNotTouched(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newSheddingMemory(t)
		priorities := map[uint32]scribev1.Priority{1: priorityLow, 2: priorityLow, 3: 0, 4: priorityHigh, 5: priorityCritical, 6: priorityCritical}
		// An eighth of 64 MiB is kept, and a frame of a mebibyte is charged two: for itself, and for its compressed copy.
		const most = 3
		mine := 0
		if !m.admit(5, priorityCritical) {
			rt.Fatal("an empty batcher refuses")
		}
		mine++
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			m.now = m.now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Millisecond)).Draw(rt, "pause")))
			category := rapid.Uint32Range(1, 6).Draw(rt, "category")
			p := priorities[category]
			if rapid.IntRange(0, 9).Draw(rt, "what") == 0 {
				if account := m.acc.accounts[category]; account != nil && account.held > 0 {
					if p == priorityCritical {
						mine -= int(account.held >> 21)
					}
					m.free(category)
				}
				continue
			}
			if p == priorityCritical {
				if mine >= most {
					continue
				}
				if !m.admit(category, p) {
					rt.Fatalf("the highest is refused with %d frames of its own and %d MiB of all", mine, m.acc.memory.Used()>>20)
				}
				mine++
				continue
			}
			for m.admit(category, p) { // as much as it gets
				if used, limit := m.acc.memory.Used(), m.acc.memory.Limit(); used > limit-limit/8 {
					rt.Fatalf("priority %v is admitted into what is kept: %d of %d", p, used, limit)
				}
			}
		}
	})
}
