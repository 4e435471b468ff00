package spool

import (
	"container/list"

	"scribe/scribed/spool/layout"
)

// entryBytes is the memory of an index entry.
const entryBytes = 32

// indexCache bounds the memory of the indexes that can be read again from a footer, by evicting the least recently used. The most
// recently used one stays, however large it is.
type indexCache struct {
	limit, used int64
	order       list.List // of *segmentPart, the most recently used first
}

type cachedIndex struct {
	element *list.Element
	bytes   int64
}

// putIndex caches the index of a part.
func (x *indexCache) putIndex(p *segmentPart, entries []layout.IndexEntry) {
	x.dropIndex(p)
	n := int64(len(entries)) * entryBytes
	p.entries = entries
	p.cached = &cachedIndex{element: x.order.PushFront(p), bytes: n}
	x.used += n
	for x.used > x.limit && x.order.Len() > 1 {
		if last, ok := x.order.Back().Value.(*segmentPart); ok {
			x.dropIndex(last)
		}
	}
}

// touchIndex marks a part's index as the most recently used.
func (x *indexCache) touchIndex(p *segmentPart) {
	if p.cached != nil {
		x.order.MoveToFront(p.cached.element)
	}
}

// dropIndex evicts a part's index. An index that is not cached stays: there is no other copy.
func (x *indexCache) dropIndex(p *segmentPart) {
	if p.cached == nil {
		return
	}
	x.used -= p.cached.bytes
	x.order.Remove(p.cached.element)
	p.cached, p.entries = nil, nil
}
