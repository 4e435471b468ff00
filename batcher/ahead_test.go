package batcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// provisioned is what a batcher is told to open ahead.
type provisioned struct {
	mu       sync.Mutex
	plans    map[uint32]*scribev1.CategoryPlan
	batchers []string
	replaced chan struct{}
}

// set replaces the plans, which give each shard of a category a number of logs, and the batchers.
func (p *provisioned) set(batchers []string, plans ...*scribev1.CategoryPlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans, p.batchers = map[uint32]*scribev1.CategoryPlan{}, batchers
	for _, plan := range plans {
		p.plans[plan.GetCategory()] = plan
	}
	close(p.replaced)
	p.replaced = make(chan struct{})
}

func (p *provisioned) provision() *Provision {
	return &Provision{
		Plans: func() (map[uint32]*scribev1.CategoryPlan, <-chan struct{}) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.plans, p.replaced
		},
		Batchers: func() ([]string, <-chan struct{}) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.batchers, p.replaced
		},
	}
}

func planLogs(category uint32, logs uint32, shards ...uint32) *scribev1.CategoryPlan {
	p := &scribev1.CategoryPlan{Category: category}
	for _, s := range shards {
		p.Shards = append(p.Shards, &scribev1.ShardPlan{Shard: s, MicroShards: 1, Logs: logs})
	}
	return p
}

// TestOpenAhead: the logs that a plan asks a batcher for are open before their records come, also of another slot and after the engine was
// away; each is opened once; and a frame for one of them waits for nothing.
func TestOpenAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provisioned{replaced: make(chan struct{})}
		var opened []record.ShardID
		c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Provision = p.provision() })
		c.log.onOpen.set(func(_ context.Context, shards []record.ShardID) error {
			opened = append(opened, shards...)
			return nil
		})
		took := func(what string, want ...record.ShardID) {
			t.Helper()
			<-time.After(2 * time.Second)
			synctest.Wait()
			if !slices.Equal(opened, want) {
				t.Errorf("%s: opened %v, want %v", what, opened, want)
			}
			opened = nil
		}
		log := record.MakeShardID

		c.log.opens.plan(step{err: errInjected})
		p.set([]string{"test"}, planLogs(1, 1, 0, 2))
		took("a plan, while the engine fails once", log(1, 0, 7), log(1, 2, 7), log(1, 0, 7), log(1, 2, 7))
		p.set([]string{"test"}, p.plans[1], planLogs(2, 3, 1))
		took("another plan", log(2, 1, 7))
		before := c.log.opens.count()
		if r := c.submit(scribev1.AckLevel_ACK_LEVEL_COMMITTED, makeFrame(t, "alpha", 2, nil, "x"), makeFrame(t, "beta", 1, nil, "y")); r[0].GetError() != nil || r[1].GetError() != nil {
			t.Fatal(r)
		}
		if n := c.log.opens.count() - before; n != 0 {
			t.Errorf("%d logs were opened for frames of planned shards", n)
		}
		c.slot.Store(0)
		p.set([]string{"test", "b"}, p.plans[1], p.plans[2])
		took("without a slot")
		c.slot.Store(9)
		took("with another slot", log(1, 2, 9), log(2, 1, 9)) // shard 0 of category 1 is the other batcher's
		p.set([]string{"test"}, planLogs(1, 1, 2))
		took("a smaller plan, whose logs are open")
	})
}

// TestOpenAheadAfterRemoval: a log that was removed while nothing was planned for it is opened again with the next plan, and a frame for it waits
// for nothing.
func TestOpenAheadAfterRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provisioned{replaced: make(chan struct{})}
		c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Provision = p.provision() })
		log := record.MakeShardID(1, 0, 7)
		settle := func(plans ...*scribev1.CategoryPlan) {
			p.set([]string{"test"}, plans...)
			<-time.After(2 * time.Second)
			synctest.Wait()
		}
		settle(planLogs(1, 1, 0))
		states, err := c.log.Tail(t.Context(), []record.ShardID{log})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		if n, err := c.log.Remove(t.Context(), []metalog.Unused{{Shard: log, Epoch: states[0].Epoch}}); n != 1 || err != nil {
			t.Fatalf("%d logs were removed, %v", n, err)
		}
		settle(planLogs(1, 1, 0))
		before := c.log.opens.count()
		if r := c.submit(scribev1.AckLevel_ACK_LEVEL_COMMITTED, makeFrame(t, "alpha", 0, nil, "x")); r[0].GetError() != nil {
			t.Fatal(r)
		}
		if n := c.log.opens.count() - before; n != 0 {
			t.Errorf("%d logs were opened for a frame of a planned shard", n)
		}
	})
}

// TestOpenAheadInChunks: while many logs are opened ahead, a frame for one whose turn has not come does not wait for those before it.
func TestOpenAheadInChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &provisioned{replaced: make(chan struct{})}
		c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Provision = p.provision() })
		hold := make(chan struct{})
		c.log.onOpen.set(func(ctx context.Context, shards []record.ShardID) error {
			if len(shards) == aheadChunk {
				return until(ctx, hold)
			}
			return nil
		})
		var plans []*scribev1.CategoryPlan
		for i := range uint32(5000) {
			plans = append(plans, planLogs(1000+i, 1, 0))
		}
		plans = append(plans, planLogs(1_000_000, 1, 0))
		c.catalog["late"] = &scribev1.Category{Name: "late", Id: 1_000_000, Shards: 1}
		p.set([]string{"test"}, plans...)
		synctest.Wait()
		start := time.Now()
		if r := c.submit(scribev1.AckLevel_ACK_LEVEL_COMMITTED, makeFrame(t, "late", 0, nil, "x")); r[0].GetError() != nil {
			t.Fatal(r)
		}
		if waited := time.Since(start); waited > testConfig().StallAfter/2 {
			t.Errorf("a frame waited %v for logs that others asked for", waited)
		}
		close(hold)
	})
}

// TestPlannedLogs: each shard's logs are asked of as many batchers as planned, and of others with other batchers.
func TestPlannedLogs(t *testing.T) {
	var batchers []string
	for i := range 10 {
		batchers = append(batchers, fmt.Sprintf("b%d", i))
	}
	counts := map[record.ShardID]int{}
	for _, b := range batchers {
		for _, log := range plannedLogs([]*scribev1.CategoryPlan{planLogs(1, 3, 0, 1, 2), planLogs(2, 50, 7)}, b, batchers, 5) {
			counts[log]++
		}
	}
	if len(counts) != 4 || counts[record.MakeShardID(1, 0, 5)] != 3 || counts[record.MakeShardID(1, 2, 5)] != 3 || counts[record.MakeShardID(2, 7, 5)] != 10 {
		t.Errorf("batchers that open each log: %v", counts)
	}
}
