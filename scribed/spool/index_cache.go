package spool

import (
	"math"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/scribed/spool/layout"
)

// entryBytes is the memory of an index entry.
const entryBytes = 32

// indexCache bounds the memory of the indexes that can be read again from a footer, by evicting the least recently used. The most
// recently used one stays, however large it is.
type indexCache struct {
	*simplelru.LRU[*segmentPart, struct{}]

	limit, used int64
}

func newIndexCache(limit int64) *indexCache {
	x := &indexCache{limit: limit}
	x.LRU, _ = simplelru.NewLRU(math.MaxInt, func(p *segmentPart, _ struct{}) { // fails only without a size
		x.used -= int64(len(p.entries)) * entryBytes
		p.entries = nil
	})
	return x
}

// putIndex caches the index of a part.
func (x *indexCache) putIndex(p *segmentPart, entries []layout.IndexEntry) {
	x.Remove(p)
	p.entries = entries
	x.used += int64(len(entries)) * entryBytes
	for x.Add(p, struct{}{}); x.used > x.limit && x.Len() > 1; {
		x.RemoveOldest()
	}
}
