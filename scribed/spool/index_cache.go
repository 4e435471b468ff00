package spool

import (
	"container/list"

	"scribe/scribed/spool/layout"
)

// entryBytes is what an entry of an index takes in memory.
const entryBytes = 32

// indexCache bounds the memory of the indexes that can be read again from a footer: the least recently used go. The most recent one
// stays, however large it is.
type indexCache struct {
	limit, used int64
	order       list.List // of *part, the most recent in front
}

type cachedIndex struct {
	element *list.Element
	bytes   int64
}

// putIndex gives a part its index.
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

// touchIndex makes a part's index the most recent one.
func (x *indexCache) touchIndex(p *segmentPart) {
	if p.cached != nil {
		x.order.MoveToFront(p.cached.element)
	}
}

// dropIndex forgets a part's index. One that is not cached stays: there is no other copy.
func (x *indexCache) dropIndex(p *segmentPart) {
	if p.cached == nil {
		return
	}
	x.used -= p.cached.bytes
	x.order.Remove(p.cached.element)
	p.cached, p.entries = nil, nil
}
