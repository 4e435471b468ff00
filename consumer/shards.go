package consumer

import (
	"slices"
	"time"

	"scribe/internal/base/backoff"
	scribev1 "scribe/proto/scribe/v1"
)

// This file decides which logical shards a consumer reads: those that its options name, and of these, if its extension looks for
// values whose shards are known, only those in which such messages can be.

// layoutRefresh is how often, give or take a fifth, a consumer that follows some shards asks whether the category places messages
// differently. That is how late messages of a shard that was added are read.
const layoutRefresh = 5 * time.Second

// shardSet is the logical shards that a consumer reads. It is immutable.
type shardSet struct {
	list   []uint32 // none = all
	listed map[uint32]bool
	// chosen are the shards that the extension left, of so many that the category has; of = 0: it left all.
	chosen []uint32
	of     uint32
}

func newShardSet(list []uint32) *shardSet {
	s := &shardSet{list: list, listed: make(map[uint32]bool, len(list))}
	for _, n := range list {
		s.listed[n] = true
	}
	return s
}

// has reports whether the consumer reads a logical shard.
func (s *shardSet) has(n uint32) bool { return len(s.list) == 0 || s.listed[n] }

// narrowTo returns the set without all shards but some, of a category with so many. If none is left it has one, whose messages are to
// be skipped: a stream without any would wait for the first.
func (s *shardSet) narrowTo(some []uint32, of uint32) *shardSet {
	chosen := slices.DeleteFunc(slices.Clone(some), func(n uint32) bool { return !s.has(n) })
	list := chosen
	switch {
	case len(chosen) > 0:
	case len(s.list) > 0:
		list = s.list[:1]
	default:
		list = []uint32{0}
	}
	narrow := newShardSet(list)
	narrow.chosen, narrow.of = chosen, of
	return narrow
}

// ShardsRead returns the logical shards that the extension left of those that the category has, and their number; 0 if it left all, or
// has not chosen yet.
func (c *Consumer) ShardsRead() (shards []uint32, of uint32) {
	s := c.reads.Load()
	return s.chosen, s.of
}

// optionShards returns the shards that the options name.
func (c *Consumer) optionShards() *shardSet { return newShardSet(c.cfg.logicalShards) }

// choosesShards reports whether the extension may leave out shards. It may not where the iteration ends at a time that is still to
// come: shards that are added by then might be noticed too late.
func (c *Consumer) choosesShards() bool {
	return c.eval != nil && c.eval.Shards != nil && !c.cfg.member && (c.cfg.untilEnd || c.cfg.until.IsZero())
}

// canFollow reports whether a consumer that follows the category may leave out shards of it. It reads a shard that was added late:
// its messages would break a window, and the one order of a repeatable category.
func (c *Consumer) canFollow(category *scribev1.Category) bool {
	if category.KeepsOrder() {
		return false // a part of a split shard would be read out of order with its parent
	}
	switch category.GetRepeatable() {
	case scribev1.Repeatability_REPEATABILITY_UNSPECIFIED, scribev1.Repeatability_REPEATABILITY_NONE:
	default:
		return false
	}
	if w := c.cfg.window; w != nil {
		return *w == Unbounded
	}
	return category.GetOrderingWindow() == nil
}

// readsOf returns the shards to read of a category.
func (c *Consumer) readsOf(category *scribev1.Category) *shardSet {
	all := c.optionShards()
	if !c.cfg.untilEnd && !c.canFollow(category) {
		return all
	}
	some, ok := c.eval.Shards(category)
	if !ok {
		return all
	}
	return all.narrowTo(some, category.GetShards())
}

// chooseShards decides what the iteration reads. What it knows of the category must not be older than the iteration: messages that
// were committed by then may be in shards that were added since the last one. Of a sequenced category it must not be older than the
// end of a bounded iteration either: all shards are in one log, and what was passed over does not come again. So that waits for
// the stream to be opened.
func (s *iterationSession) chooseShards(opened bool) {
	c := s.c
	if !opened {
		c.reads.Store(c.optionShards())
	}
	if !c.choosesShards() {
		return
	}
	category, err := c.Describe(s.ctx)
	if err != nil {
		return // the iteration meets the same error, or reads all shards
	}
	if !opened && category.GetRepeatable() == scribev1.Repeatability_REPEATABILITY_SEQUENCED {
		s.choosesLate = c.cfg.untilEnd
		return
	}
	set := c.readsOf(category)
	c.reads.Store(set)
	if set.of > 0 && !c.cfg.untilEnd {
		s.startGoroutine(s.followLayouts)
	}
}

// followLayouts adds shards to those that are read when the category places messages differently. A shard that is added is read from
// its beginning: nothing that the consumer looks for is in it from before the change.
func (s *iterationSession) followLayouts() {
	c := s.c
	for backoff.Sleep(s.ctx, backoff.Jitter(c.cfg.random, layoutRefresh, 0.2)) == nil {
		category, err := c.Describe(s.ctx)
		if err != nil {
			continue // the category is gone, for example: the stream tells
		}
		before, now := c.reads.Load(), c.readsOf(category)
		if before.of == now.of && slices.Equal(before.list, now.list) {
			continue
		}
		c.reads.Store(now)
		if !slices.Equal(before.list, now.list) {
			c.cfg.logger.Info("the category places messages differently: reading more shards", "shards", now.list, "category_shards", category.GetShards())
			c.mu.Lock()
			c.reopenStream()
			c.mu.Unlock()
		}
		if now.of == 0 {
			return
		}
	}
}

// reopenStream ends the running stream, so that one for what is to be read now is opened. The mutex is held.
func (c *Consumer) reopenStream() {
	if c.mu.reopen != nil {
		c.mu.reopen()
	}
}
