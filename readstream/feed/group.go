package feed

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// tailGroup is a set of shards that one subscription follows.
type tailGroup struct {
	tails  []*shardTail
	cancel context.CancelFunc
	done   sync.WaitGroup
	// unfollowed counts its shards that no member follows any more; guarded by the feed's mutex.
	unfollowed int
}

// keepSubscriptions keeps each followed shard in a group.
func (f *categoryFeed) keepSubscriptions() {
	defer func() {
		for _, g := range f.groups {
			g.cancel()
			g.done.Wait()
		}
	}()
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.regroup:
		}
		f.shrinkGroups()
		for part := range slices.Chunk(f.ungroupedTails(), metalog.MaxShards) {
			f.subscribeTails(part)
		}
	}
}

// ungroupedTails returns the followed tails that are in no group and not sealed at their end.
func (f *categoryFeed) ungroupedTails() []*shardTail {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fresh []*shardTail
	for _, x := range f.mu.table.order { // it may be long, and few are in no group
		if x.group == nil {
			fresh = append(fresh, x)
		}
	}
	return fresh
}

// shrinkGroups ends the groups in which most shards are no longer followed. Their other shards are then in no group.
func (f *categoryFeed) shrinkGroups() {
	var ends []*tailGroup
	f.mu.Lock()
	f.groups = slices.DeleteFunc(f.groups, func(g *tailGroup) bool {
		end := 2*g.unfollowed >= len(g.tails)
		if end {
			ends = append(ends, g)
		}
		return end
	})
	f.mu.Unlock()
	for _, g := range ends {
		f.endGroup(g)
	}
}

// endGroup ends a group. What members were told of its tails stays true, and the next subscription resumes there. Tails that no
// member follows are dropped.
func (f *categoryFeed) endGroup(g *tailGroup) {
	g.cancel()
	g.done.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, x := range g.tails {
		f.mu.table.dropTail(x)
	}
}

// subscribeTails creates a group of tails that are in none. It absorbs the groups that are not larger, so there are few groups,
// and a shard rarely changes its group.
func (f *categoryFeed) subscribeTails(tails []*shardTail) {
	g := &tailGroup{tails: slices.Clone(tails)}
	for len(f.groups) > 0 {
		last := f.groups[len(f.groups)-1]
		if len(last.tails) > len(g.tails) || len(last.tails)+len(g.tails) > metalog.MaxShards {
			break
		}
		f.groups = f.groups[:len(f.groups)-1]
		f.endGroup(last)
		g.tails = append(g.tails, last.tails...)
	}
	f.mu.Lock()
	g.tails = slices.DeleteFunc(g.tails, func(x *shardTail) bool { return x.index < 0 })
	for _, x := range g.tails {
		x.group = g
	}
	f.mu.Unlock()
	if len(g.tails) == 0 {
		return
	}
	var ctx context.Context
	ctx, g.cancel = context.WithCancel(f.ctx)
	f.groups = append(f.groups, g)
	g.done.Go(func() {
		f.hub.subscriptions.Add(1)
		defer f.hub.subscriptions.Add(-1)
		f.retryCall(ctx, "subscribe", func(alive func()) error { return f.followGroup(ctx, g, alive) })
	})
}

// followGroup subscribes to a group until all its shards are sealed. A subscription that misses its heartbeats counts as broken.
func (f *categoryFeed) followGroup(ctx context.Context, g *tailGroup, alive func()) error {
	f.mu.Lock()
	from := make([]metalog.Position, 0, len(g.tails))
	for _, x := range g.tails {
		if !x.sealed {
			from = append(from, metalog.Position{Shard: x.shard, LSN: max(x.sent, record.FirstLSN)})
		}
	}
	f.mu.Unlock()
	if len(from) == 0 {
		return nil
	}
	sealed := 0
	var own updateCopies
	silence := f.hub.cfg.silence()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	err := f.hub.deps.Log.Subscribe(ctx, from, f.hub.cfg.Heartbeat, func(updates []metalog.Update) error {
		silent.Reset(silence)
		alive()
		updates = own.copyUpdates(updates)
		for i := range updates {
			if updates[i].Sealed {
				sealed++
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.mu.table.applyUpdates(updates)
		return nil
	})
	switch {
	case errors.Is(context.Cause(ctx), errSilent):
		return errSilent
	case err == nil && sealed < len(from):
		return errEnded
	}
	return err
}

// updateCopies copies updates whose records may be kept. Each record has its own memory, so a member that keeps one for long
// keeps nothing else alive.
type updateCopies struct {
	updates []metalog.Update
	entries []metalog.Entry
}

// keptCopies is the capacity kept between updates.
const keptCopies = 64

// copyUpdates returns copies that are valid until the next call, except for the data of their entries, which is never changed.
func (c *updateCopies) copyUpdates(updates []metalog.Update) []metalog.Update {
	n := 0
	for i := range updates {
		n += len(updates[i].Entries)
	}
	clear(c.entries)
	c.updates, c.entries = append(c.updates[:0], updates...), c.entries[:0]
	if cap(c.entries) < n || cap(c.entries) > max(n, keptCopies) {
		c.entries = make([]metalog.Entry, 0, n)
	}
	for i := range c.updates {
		u, begin := &c.updates[i], len(c.entries)
		for _, e := range u.Entries {
			e.Data = slices.Clone(e.Data)
			c.entries = append(c.entries, e)
		}
		u.Entries = c.entries[begin:len(c.entries):len(c.entries)]
	}
	return c.updates
}
