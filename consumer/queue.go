package consumer

import (
	"context"
	"maps"
	"sync"

	"scribe/consumer/internal/payload"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

// itemKind is what an item is.
type itemKind uint8

const (
	itemPayload   itemKind = 1
	itemGap       itemKind = 2
	itemWatermark itemKind = 3
	itemEnd       itemKind = 4 // nothing follows; err says why, nil when everything was delivered
	itemOpened    itemKind = 5 // a stream was opened
	itemPassed    itemKind = 6 // a pointer of a sequenced log whose payload is not wanted
	itemSkipped   itemKind = 7 // pointers that the stream left out, since their payloads can't match
)

// streamItem is a step of the merged stream. Its maker fills it; of a payload, Frames, buf, gap and Err belong to the fetch until ready
// is closed.
type streamItem struct {
	kind itemKind
	pos  *shardPosition
	// Of the embedded payload, a gap and a passed pointer have an LSN, a watermark a time, and the end an error.
	payload.Payload
	offset uint64 // of its first message, in a sequenced category

	// Of a payload. raw is the encoded pointer, given up once it is fetched.
	raw   []byte
	ptr   pointer.Pointer
	ready chan struct{}
	buf   *buffers.Buffer
	// cost is the memory that it is charged for in itemQueue.held: what fetching it may take, and once it is there what it takes.
	cost  int64
	tries int // answers whose bytes were damaged

	// plain says that the payload is fetched as it is stored; refused, that it is so because no view of it was to be had.
	plain, refused bool
	// runs are the places behind pointers that were left out, of an itemSkipped.
	runs map[*shardPosition]record.LSN

	gap *GapError

	// In a group: the places that a gap takes further, and which buckets a watermark speaks of (memberShare.version).
	lost    []*shardPosition
	version uint64
}

// place is where the item is, for errors.
func (it *streamItem) place(category string) payloadPlace {
	return payloadPlace{category, it.Source, it.SourceLSN}
}

// itemQueue holds what was received and not yet consumed, in the merged order. It is bounded by the credits that the stream was
// given: what comes over them is refused.
//
// One bound in bytes covers everything: a part of it the pointers that wait, at pointerCost each, the rest (room) the payloads, each
// with what it takes at that moment. While it is fetched that is its compressed form and its decoded form; then what is left. A payload
// that is larger than the room by itself is fetched when no other is held.
type itemQueue struct {
	// maxPointers and maxBytes are the credits in all: pointers, and bytes of their decoded payloads.
	maxPointers int
	maxBytes    int64
	room        int64         // for payloads, in bytes of memory
	news        chan struct{} // of capacity 1: the head changed, for the one who iterates
	credits     chan struct{} // of capacity 1: there are credits to give back, for the stream

	mu struct {
		sync.Mutex
		items []*streamItem
		head  int // in items, of the first one
		next  int // in items, of the first payload that is not being fetched
		// pointers and bytes wait to be consumed: credits that are in use.
		pointers int
		bytes    int64
		// freePointers and freeBytes were consumed and not given back to the stream. A stream that was opened while more bytes
		// were in use than there are credits begins with a debt: freeBytes is below 0 until that is paid.
		freePointers int
		freeBytes    int64
		// fetching is the number of fetches under way, held what payloads that are fetched or being fetched are charged.
		fetching int
		held     int64
		messages int64 // of payloads in items
		// seenPointers, seenMessages and seenBytes count all that were received, behind how many pointers are known to wait in the
		// server, and heard says that the server told.
		seenPointers, seenMessages, seenBytes uint64
		behind                                uint64
		heard                                 bool
	}
}

// Pointers that wait take an eighth of the bound, and are maxQueued at most. pointerCost is what one takes: the item, its channel, and
// the encoded pointer, of which the producers' sequences are not kept (session.queueEntry).
const (
	maxQueued   = 2048
	minQueued   = 16
	pointerCost = 640
)

func newQueue(maxBytes int64) *itemQueue {
	pointers := min(max(maxBytes/8/pointerCost, minQueued), maxQueued)
	return &itemQueue{
		maxPointers: int(pointers), maxBytes: maxBytes, room: maxBytes - pointers*pointerCost,
		news: make(chan struct{}, 1), credits: make(chan struct{}, 1),
	}
}

// fetchCost is the memory that a payload may take while it is fetched: the answer's, and the buffer that it is decompressed into. One that
// is a whole block comes as it is stored; others are cut out of their block and come as they are.
func fetchCost(p *pointer.Pointer) int64 {
	whole := p.Offset == 0 && p.Length == p.BlockRawLen
	if !whole || p.Codec == pointer.CodecNone {
		return int64(p.Length)
	}
	return int64(p.BlockLen) + int64(p.Length)*5/4 // a pooled buffer is at most a quarter larger than what it holds
}

func wakeWaiter(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a signal is waiting: whoever takes it sees everything
	}
}

// isFull says that the stream has used up its credits for pointers.
func (q *itemQueue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.pointers >= q.maxPointers
}

// pushItem appends an item; of payloads only while the queue is not full.
func (q *itemQueue) pushItem(it *streamItem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch it.kind {
	case itemPayload:
		q.mu.pointers++
		q.mu.bytes += int64(it.ptr.Length)
		q.mu.messages += int64(it.ptr.Messages)
		q.mu.behind -= min(q.mu.behind, 1) // until the server tells again
		q.mu.seenPointers++
		q.mu.seenMessages += uint64(it.ptr.Messages)
		q.mu.seenBytes += uint64(it.ptr.Length)
	case itemPassed: // it took credits, which bound how many there are
		q.mu.pointers++
		q.mu.bytes += int64(it.ptr.Length)
	case itemSkipped: // they go without credits, and many may come
		if n := len(q.mu.items); n-1 > q.mu.head && q.mu.items[n-1].kind == it.kind {
			maps.Copy(q.mu.items[n-1].runs, it.runs)
			return
		}
	case itemWatermark, itemOpened:
		// One that nothing stands behind is replaced, so that heartbeats and attempts do not pile up.
		if n := len(q.mu.items); n > q.mu.head && q.mu.items[n-1].kind == it.kind {
			q.mu.items[n-1] = it
			return
		}
	default: // bounded by what is around them
	}
	q.mu.items = append(q.mu.items, it)
	wakeWaiter(q.news)
}

// refundCredits gives back the credits of a pointer that is not queued.
func (q *itemQueue) refundCredits(bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.freePointers++
	q.mu.freeBytes += bytes
	q.offerCredits()
}

// offerCredits wakes the stream when there are enough credits to be worth a message. The mutex is held.
func (q *itemQueue) offerCredits() {
	if q.mu.freePointers >= q.maxPointers/8 || q.mu.freeBytes >= q.maxBytes/8 || q.mu.pointers == 0 && q.mu.freePointers > 0 {
		wakeWaiter(q.credits)
	}
}

// takeCredits returns the credits to give back, and whether there are any.
func (q *itemQueue) takeCredits() (pointers int, bytes int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	pointers, bytes = q.mu.freePointers, max(q.mu.freeBytes, 0)
	q.mu.freePointers, q.mu.freeBytes = 0, q.mu.freeBytes-bytes
	return pointers, bytes, pointers > 0 || bytes > 0
}

// initialCredits returns the credits that a new stream begins with: all that are not in use. What was to be given back to the stream
// before is part of them.
func (q *itemQueue) initialCredits() (pointers int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.maxBytes - q.mu.bytes
	q.mu.freePointers, q.mu.freeBytes = 0, min(left, 0)
	return max(q.maxPointers-q.mu.pointers, 0), max(left, 0)
}

// peekItem returns the first item, or nil.
func (q *itemQueue) peekItem() *streamItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.head == len(q.mu.items) {
		return nil
	}
	return q.mu.items[q.mu.head]
}

// wouldWait reports whether wait would wait.
func (q *itemQueue) wouldWait() bool {
	it := q.peekItem()
	if it == nil || it.kind != itemPayload {
		return it == nil
	}
	select {
	case <-it.ready:
		return false
	default:
		return true
	}
}

// waitItem returns the first item when it is complete.
func (q *itemQueue) waitItem(ctx context.Context) (*streamItem, error) {
	it := q.peekItem()
	for ; it == nil; it = q.peekItem() {
		select {
		case <-q.news:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if it.kind != itemPayload {
		return it, nil
	}
	select {
	case <-it.ready:
		return it, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// popItem removes the first item, which wait has returned.
func (q *itemQueue) popItem() {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.mu.items[q.mu.head]
	q.mu.items[q.mu.head] = nil
	q.mu.head++
	if q.mu.head > len(q.mu.items)/2 {
		n := copy(q.mu.items, q.mu.items[q.mu.head:])
		clear(q.mu.items[n:])
		q.mu.items = q.mu.items[:n]
		q.mu.next = max(q.mu.next-q.mu.head, 0)
		q.mu.head = 0
	}
	if it.kind == itemPayload || it.kind == itemPassed {
		n := int64(it.ptr.Length)
		q.mu.pointers--
		q.mu.bytes -= n
		q.mu.held -= it.cost
		q.mu.messages -= int64(it.ptr.Messages)
		q.mu.freePointers++
		q.mu.freeBytes += n
		q.offerCredits()
	}
}

// Limits of one fetch: what shares a request is answered together, so the parts of a long queue are fetched side by side. The
// protocol allows 1,000 pointers.
const (
	fetchBytes    = 2 << 20
	fetchPointers = 256
)

// nextFetch returns the next payloads to fetch together, in order, when there is room for them and a fetch may start.
func (q *itemQueue) nextFetch(concurrency int) []*streamItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.fetching >= concurrency {
		return nil
	}
	var (
		group []*streamItem
		bytes int64
	)
	q.mu.next = max(q.mu.next, q.mu.head)
	for ; q.mu.next < len(q.mu.items) && len(group) < fetchPointers; q.mu.next++ {
		it := q.mu.items[q.mu.next]
		if it.kind != itemPayload || it.Err != nil {
			continue
		}
		n, cost := int64(it.ptr.Length), fetchCost(&it.ptr)
		if len(group) > 0 && bytes+n > fetchBytes || q.mu.held > 0 && q.mu.held+cost > q.room {
			break
		}
		bytes += n
		it.cost = cost
		q.mu.held += cost
		group = append(group, it)
	}
	if len(group) > 0 {
		q.mu.fetching++
	}
	return group
}

// chargeItem changes what a payload is charged, once that is known.
func (q *itemQueue) chargeItem(it *streamItem, cost int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.held += cost - it.cost
	it.cost = cost
}

// notePending takes how many pointers wait in the server.
func (q *itemQueue) notePending(n uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.behind, q.mu.heard = n, true
}

// endFetch ends a fetch.
func (q *itemQueue) endFetch() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.fetching--
}

// queueBacklog is what a queue knows of what is not consumed.
type queueBacklog struct {
	pointers        int
	messages, bytes int64

	seenPointers, seenMessages, seenBytes uint64
	behind                                uint64
	heard                                 bool
}

// readBacklog returns what is queued, and what is known of the rest.
func (q *itemQueue) readBacklog() queueBacklog {
	q.mu.Lock()
	defer q.mu.Unlock()
	return queueBacklog{
		pointers: q.mu.pointers, messages: q.mu.messages, bytes: q.mu.bytes,
		seenPointers: q.mu.seenPointers, seenMessages: q.mu.seenMessages, seenBytes: q.mu.seenBytes,
		behind: q.mu.behind, heard: q.mu.heard,
	}
}
