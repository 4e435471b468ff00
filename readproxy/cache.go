package readproxy

import (
	"errors"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// blockCache keeps blocks within a bound of bytes, in two parts, after 2Q (Johnson and Shasha, 1994). The proven part is for
// blocks with several readers: those that were requested a second time, and young ones, which consumers at the tail read
// together. All other blocks start in the trial part. A block evicted from the proven part returns to the trial part as the
// newest; a block evicted from the trial part leaves the cache. So a consumer that replays a history, which requests each block
// once, displaces only trial blocks, not those that others share.
//
// The keys of blocks evicted from the trial part are kept for a while: such a block is proven when it is fetched again. So the
// trial part may be smaller than the distance between two consumers that replay the same history.
type blockCache struct {
	limit       int64
	provenLimit int64
	mu          struct {
		sync.Mutex
		trial, proven           *simplelru.LRU[blockKey, *checkedBlock]
		given                   *simplelru.LRU[blockKey, struct{}]
		trialBytes, provenBytes int64
		evicted                 uint64
		// pushedReads counts the pushed blocks that were read, pushedUnread those that were evicted before.
		pushedReads, pushedUnread uint64
	}
}

const (
	// provenShare bounds the proven part, as a share of the cache.
	provenShare = 0.75
	// rememberedKeys bounds the remembered keys of evicted blocks, some 200 bytes each.
	rememberedKeys = 8192
)

func newCache(limit int64) (*blockCache, error) {
	c := &blockCache{limit: limit, provenLimit: int64(float64(limit) * provenShare)}
	var errs [3]error
	// The bounds are on bytes, which addBlock and addProven count up and enforce.
	c.mu.trial, errs[0] = simplelru.NewLRU(math.MaxInt, func(_ blockKey, b *checkedBlock) { c.mu.trialBytes -= b.chargedBytes() })
	c.mu.proven, errs[1] = simplelru.NewLRU(math.MaxInt, func(_ blockKey, b *checkedBlock) { c.mu.provenBytes -= b.chargedBytes() })
	c.mu.given, errs[2] = simplelru.NewLRU[blockKey, struct{}](rememberedKeys, nil)
	return c, errors.Join(errs[:]...)
}

// getBlock returns a block, or nil. first means that this is the first request since it was added.
func (c *blockCache) getBlock(k blockKey) (b *checkedBlock, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.mu.proven.Get(k); ok {
		return b, false
	}
	b, ok := c.mu.trial.Peek(k)
	if !ok {
		return nil, false
	}
	c.mu.trial.Remove(k)
	c.addProven(k, b)
	if b.unread {
		b.unread = false
		c.mu.pushedReads++
		return b, false
	}
	return b, true
}

// hasBlock reports whether a block is in the cache. It does not count as a request.
func (c *blockCache) hasBlock(k blockKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.proven.Contains(k) || c.mu.trial.Contains(k)
}

// addPushed adds a block that nobody has requested yet, unless it is in the cache. It starts in the trial part, and displaces
// only trial blocks: blocks that were pushed and are not read do not take memory from those that are. It reports whether the
// block is in the cache.
func (c *blockCache) addPushed(k blockKey, b *checkedBlock) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.proven.Contains(k) || c.mu.trial.Contains(k) {
		return true
	}
	if c.mu.provenBytes+b.chargedBytes() > c.limit {
		return false
	}
	for c.mu.trialBytes+c.mu.provenBytes+b.chargedBytes() > c.limit {
		c.evictTrial()
	}
	b.unread = true
	c.mu.trial.Add(k, b)
	c.mu.trialBytes += b.chargedBytes()
	return true
}

// evictTrial evicts the oldest trial block, and reports whether there was one. The mutex is held.
func (c *blockCache) evictTrial() bool {
	k, b, ok := c.mu.trial.RemoveOldest()
	if !ok {
		return false
	}
	c.mu.given.Add(k, struct{}{})
	c.mu.evicted++
	if b.unread {
		c.mu.pushedUnread++
	}
	return true
}

// addProven adds a block that is in no part to the proven one. The mutex is held.
func (c *blockCache) addProven(k blockKey, b *checkedBlock) {
	if b.chargedBytes() > c.provenLimit {
		c.mu.trial.Add(k, b)
		c.mu.trialBytes += b.chargedBytes()
		return
	}
	c.mu.proven.Add(k, b)
	c.mu.provenBytes += b.chargedBytes()
	for c.mu.provenBytes > c.provenLimit {
		old, demoted, _ := c.mu.proven.RemoveOldest()
		c.mu.trial.Add(old, demoted)
		c.mu.trialBytes += demoted.chargedBytes()
	}
}

// addBlock adds a block, unless it is larger than the whole cache. proven means that it is young, or has been requested several
// times. Other blocks are evicted first, so the bound always holds.
func (c *blockCache) addBlock(k blockKey, b *checkedBlock, proven bool) {
	if b.chargedBytes() > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.trial.Remove(k)
	c.mu.proven.Remove(k)
	for c.mu.trialBytes+c.mu.provenBytes+b.chargedBytes() > c.limit {
		if !c.evictTrial() {
			c.mu.proven.RemoveOldest()
			c.mu.evicted++
		}
	}
	if c.mu.given.Remove(k) || proven {
		c.addProven(k, b)
		return
	}
	c.mu.trial.Add(k, b)
	c.mu.trialBytes += b.chargedBytes()
}

// dropDamaged removes a damaged block, unless another one has replaced it.
func (c *blockCache) dropDamaged(k blockKey, damaged *checkedBlock) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range []*simplelru.LRU[blockKey, *checkedBlock]{c.mu.trial, c.mu.proven} {
		if b, ok := part.Peek(k); ok && b == damaged {
			part.Remove(k)
		}
	}
}

// cacheStats describes a cache.
type cacheStats struct {
	blocks               int
	bytes, proven, limit int64
	evicted              uint64
	// pushedReads and pushedUnread are the pushed blocks that were read, and those that were evicted before.
	pushedReads, pushedUnread uint64
}

func (c *blockCache) readStats() cacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cacheStats{
		blocks: c.mu.trial.Len() + c.mu.proven.Len(), bytes: c.mu.trialBytes + c.mu.provenBytes, proven: c.mu.provenBytes,
		limit: c.limit, evicted: c.mu.evicted, pushedReads: c.mu.pushedReads, pushedUnread: c.mu.pushedUnread,
	}
}

func (c *blockCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.trial.Purge()
	c.mu.proven.Purge()
	c.mu.given.Purge()
}
