package consumer

import (
	"context"
	"maps"
	"sync"

	"scribe/consumer/internal/payload"
	"scribe/internal/base/buffers"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

// itemKind is the kind of a streamItem.
type itemKind uint8

const (
	itemPayload   itemKind = 1
	itemGap       itemKind = 2
	itemWatermark itemKind = 3
	itemEnd       itemKind = 4 // end of the iteration; Err says why, nil when everything was delivered
	itemOpened    itemKind = 5 // a stream was opened
	itemPassed    itemKind = 6 // a pointer of a sequenced log whose payload is not wanted
	itemSkipped   itemKind = 7 // pointers that the stream left out, since their payloads can't match
)

// streamItem is one step of the merged stream. Its creator fills it. In a payload item, the fetching goroutine owns Frames, buf,
// gap, leftOut, sampleRate and Err until ready is closed.
type streamItem struct {
	kind itemKind
	pos  *shardPosition
	// Gaps and passed pointers use the embedded payload's LSN, watermarks its Time, and the end its Err.
	payload.Payload
	offset uint64 // number of its first message, in a sequenced category

	// For payloads. raw is the encoded pointer, dropped after the fetch.
	raw []byte
	ptr pointer.Pointer
	// ticket lets this reader fetch the payload, in a closed cell; it is dropped with raw.
	ticket []byte
	ready  chan struct{}
	buf    *buffers.Buffer
	// cost is the item's share of itemQueue.mu.held: an upper estimate of the fetch's memory, and after the fetch the memory in
	// use.
	cost  int64
	tries int // number of answers whose bytes were damaged
	// gone: the rest of it no longer belongs to the member of a group.
	gone bool

	// leftOut: the category's quota for reading left the payload out. sampleRate is how many payloads it stands for; 0 for itself alone.
	leftOut    bool
	sampleRate uint32

	// plain: fetch the payload as it is stored. refused: because no view of it is available.
	plain, refused bool
	// runs are the positions after the left-out pointers of an itemSkipped.
	runs map[*shardPosition]record.LSN

	gap *GapError

	// lost are the positions that a gap advances: several in a group. version is the categoryShare.version that a watermark applies
	// to.
	lost    []*shardPosition
	version uint64
	// reached is the time that a watermark lets the consumer reach in all logs.
	reached int64
}

// itemQueue holds what was received and not yet consumed, in merged order. The stream's credits bound it: entries beyond them are
// refused.
//
// One bound in bytes covers everything: queued pointers, at pointerCost each, take a part of it, and payloads the rest (room). A
// payload is charged for its compressed and its decoded form while it is fetched, and then for the memory that it keeps. A
// payload that is larger than room is fetched when no other is held.
type itemQueue struct {
	// maxPointers and maxBytes are the total credits: pointers, and bytes of their decoded payloads.
	maxPointers int
	maxBytes    int64
	room        int64                 // for payloads, in bytes of memory
	news        lifecycle.WakeChannel // wakes the iteration when the head has changed
	credits     lifecycle.WakeChannel // wakes the stream when there are credits to return

	mu struct {
		sync.Mutex
		items []*streamItem
		head  int // index in items of the first one
		next  int // index in items of the first payload that is not being fetched
		// freePointers and freeBytes were consumed, and their credits not yet returned to the stream. A stream that is opened
		// while the bytes in use exceed the credits begins with a debt: freeBytes is negative until it is paid.
		freePointers int
		freeBytes    int64
		// fetching is the number of running fetches; held is the memory charged for payloads that are fetched or being fetched.
		fetching int
		held     int64
		queueBacklog
	}
}

// queueBacklog is what was received and not consumed, and the server's count.
type queueBacklog struct {
	// pointers and bytes are the credits in use: queued and not consumed. messages are those of payloads in the queue.
	pointers        int
	messages, bytes int64
	// seenPointers, seenMessages and seenBytes count everything received. behind is the number of pointers known to be waiting in
	// the server; heard: the server has sent it.
	seenPointers, seenMessages, seenBytes uint64
	behind                                uint64
	heard                                 bool
}

// Queued pointers take an eighth of the bound, and are at most maxQueued. pointerCost is the memory of one: the item, its
// channel, and the encoded pointer without the producers' sequences (session.queueEntry).
const (
	maxQueued   = 2048
	minQueued   = 16
	pointerCost = 640
)

func newQueue(maxBytes int64) *itemQueue {
	pointers := min(max(maxBytes/8/pointerCost, minQueued), maxQueued)
	return &itemQueue{
		maxPointers: int(pointers), maxBytes: maxBytes, room: maxBytes - pointers*pointerCost,
		news: lifecycle.NewWakeChannel(), credits: lifecycle.NewWakeChannel(),
	}
}

// fetchCost returns the memory that a payload may take during its fetch: the answer, and the buffer that it is decompressed into.
// A payload that is a whole block arrives as it is stored; others are cut out of their block and arrive uncompressed.
func fetchCost(p *pointer.Pointer) int64 {
	whole := p.Offset == 0 && p.Length == p.BlockRawLen
	if !whole || p.Codec == pointer.CodecNone {
		return int64(p.Length)
	}
	return int64(p.BlockLen) + int64(p.Length)*5/4 // a pooled buffer is at most a quarter larger than its content
}

// isFull reports whether the stream has used up its credits for pointers.
func (q *itemQueue) isFull() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.pointers >= q.maxPointers
}

// pushItem appends an item. Payloads may be pushed only while the queue is not full.
func (q *itemQueue) pushItem(it *streamItem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch it.kind {
	case itemPayload:
		q.mu.pointers++
		q.mu.bytes += int64(it.ptr.Length)
		q.mu.messages += int64(it.ptr.Messages)
		q.mu.behind -= min(q.mu.behind, 1) // until the server sends a new count
		q.mu.seenPointers++
		q.mu.seenMessages += uint64(it.ptr.Messages)
		q.mu.seenBytes += uint64(it.ptr.Length)
	case itemPassed: // takes credits, which bound the number of these
		q.mu.pointers++
		q.mu.bytes += int64(it.ptr.Length)
	case itemSkipped: // takes no credits, and many may come
		if n := len(q.mu.items); n-1 > q.mu.head && q.mu.items[n-1].kind == it.kind {
			maps.Copy(q.mu.items[n-1].runs, it.runs)
			return
		}
	case itemWatermark, itemOpened:
		// An item at the end of the queue is replaced by a newer one of its kind, so that heartbeats and attempts do not
		// accumulate.
		if n := len(q.mu.items); n > q.mu.head && q.mu.items[n-1].kind == it.kind {
			q.mu.items[n-1] = it
			return
		}
	default: // bounded by the items around them
	}
	q.mu.items = append(q.mu.items, it)
	q.news.WakeUp()
}

// refundCredits returns the credits of a pointer that is not queued.
func (q *itemQueue) refundCredits(bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.freePointers++
	q.mu.freeBytes += bytes
	q.offerCredits()
}

// offerCredits wakes the stream when enough credits are free to be worth a message. The mutex is held.
func (q *itemQueue) offerCredits() {
	if q.mu.freePointers >= q.maxPointers/8 || q.mu.freeBytes >= q.maxBytes/8 || q.mu.pointers == 0 && q.mu.freePointers > 0 {
		q.credits.WakeUp()
	}
}

// takeCredits returns the credits to give back to the stream, and whether there are any.
func (q *itemQueue) takeCredits() (pointers int, bytes int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	pointers, bytes = q.mu.freePointers, max(q.mu.freeBytes, 0)
	q.mu.freePointers, q.mu.freeBytes = 0, q.mu.freeBytes-bytes
	return pointers, bytes, pointers > 0 || bytes > 0
}

// initialCredits returns the credits of a new stream: all that are not in use, including those that were not yet returned to the
// previous stream.
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

// wouldWait reports whether waitItem would block.
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

// waitItem returns the first item once it is complete.
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

// popItem removes the first item, which waitItem has returned.
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

// Limits of one fetch. The payloads of a request are answered together, so a long queue is split into parts that are fetched
// concurrently. The protocol allows 1,000 pointers.
const (
	fetchBytes    = 2 << 20
	fetchPointers = 256
	// fetchParts is how many fetches share the memory for payloads at least, so that some arrive while others are decompressed.
	fetchParts = 16
)

// nextFetch returns the next payloads to fetch together, in order, if there is memory for them and another fetch may start.
func (q *itemQueue) nextFetch(concurrency int) []*streamItem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.fetching >= concurrency {
		return nil
	}
	var (
		group []*streamItem
		bytes int64
		held  int64
	)
	q.mu.next = max(q.mu.next, q.mu.head)
	for ; q.mu.next < len(q.mu.items) && len(group) < fetchPointers; q.mu.next++ {
		it := q.mu.items[q.mu.next]
		if it.kind != itemPayload || it.Err != nil {
			continue
		}
		n, cost := int64(it.ptr.Length), fetchCost(&it.ptr)
		if len(group) > 0 && (bytes+n > fetchBytes || held+cost > q.room/fetchParts) || q.mu.held > 0 && q.mu.held+cost > q.room {
			break
		}
		bytes += n
		held += cost
		it.cost = cost
		q.mu.held += cost
		group = append(group, it)
	}
	if len(group) > 0 {
		q.mu.fetching++
	}
	return group
}

// chargeItem corrects the charge of a payload once its memory is known.
func (q *itemQueue) chargeItem(it *streamItem, cost int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.held += cost - it.cost
	it.cost = cost
}

// notePending records the number of pointers waiting in the server.
func (q *itemQueue) notePending(n uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.behind, q.mu.heard = n, true
}

func (q *itemQueue) endFetch() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.fetching--
}

// readBacklog returns a snapshot of the backlog.
func (q *itemQueue) readBacklog() queueBacklog {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.queueBacklog
}
