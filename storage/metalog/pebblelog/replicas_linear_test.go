package pebblelog

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/storage/blob/memory"
	"scribe/storage/metalog/linear"
)

// TestReplicasAreLinearizable records calls at three replicas in virtual time while these are cut off the journal, lose answers of
// it, crash, hand over, and have their clocks set, and requires one order of the calls that explains all answers. At the end all
// folders must hold the same bytes.
func TestReplicasAreLinearizable(t *testing.T) {
	seed, rounds := rand.Uint64(), 12
	if testing.Short() {
		rounds = 4
	}
	if text := os.Getenv("SCRIBE_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		var h *linear.History
		var cell *testCell
		synctest.Test(t, func(t *testing.T) { h, cell = disturbed(t, seed) })
		if err := h.Check(); err != nil && !errors.Is(err, linear.ErrUndecided) {
			t.Errorf("SCRIBE_TEST_SEED=%d: %v", seed, err)
		}
		if t.Failed() {
			t.Fatalf("SCRIBE_TEST_SEED=%d", seed)
		}
		term := uint64(0)
		for _, n := range cell.nodes {
			_, now := n.engine.Leading()
			term = max(term, now)
		}
		t.Logf("SCRIBE_TEST_SEED=%d: %d operations, %d of unknown outcome, %d terms", seed, h.Len(), h.Unknown(), term)
		seed++
	}
}

func disturbed(t *testing.T, seed uint64) (*linear.History, *testCell) {
	options := seededOptions(seed)
	options.Snapshots, options.SnapshotEvery = memory.New(), time.Second
	rng := lockedRand{rng: rand.New(rand.NewPCG(seed, 7))}
	cell, _ := newCell(t, 3, options, func(n *testNode) {
		n.delay = func() time.Duration { return time.Duration(rng.IntN(2000)) * time.Microsecond }
	})
	cell.leader(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	h := linear.Run(ctx, linear.Config{
		Seed: seed, Calls: 60, Hurry: 2 * time.Millisecond, Patience: 20 * time.Second, Regret: 50 * time.Millisecond, Disturbances: 10,
		Disturb: func(*rand.Rand) { cell.disturb(t, &rng) },
	}, cell)
	cell.compare(t)
	cell.closeAll(t)
	return h, cell
}

// lockedRand is for several goroutines.
type lockedRand struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// IntN returns a number below n.
func (r *lockedRand) IntN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

// disturb does something to a node, in half of the cases the one that leads.
func (c *testCell) disturb(t *testing.T, rng *lockedRand) {
	n := c.nodes[rng.IntN(len(c.nodes))]
	if rng.IntN(2) == 0 {
		for _, other := range c.nodes {
			if other.leads() {
				n = other
			}
		}
	}
	n.ahead.Store(int64(rng.IntN(7_200_000_000)) - 3_600_000_000)
	while := time.Duration(rng.IntN(4000)) * time.Millisecond
	switch rng.IntN(6) {
	case 0:
		n.cut.Store(true)
		waitFor(t.Context(), while)
		n.cut.Store(false)
	case 1:
		n.lost.Store(true)
		waitFor(t.Context(), while)
		n.lost.Store(false)
	case 2, 3:
		c.crash(t, n, rand.New(rand.NewPCG(uint64(rng.IntN(1<<30)), 1)))
	case 4: // the host is replaced
		n.close(t)
		n.folder = vfs.NewCrashableMem()
		c.replace(n, n.open(t))
	case 5:
		_ = n.engine.HandOver(t.Context())
	}
}
