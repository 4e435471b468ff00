package scribed

import (
	"context"
	"slices"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/base/entropy"
	"scribe/internal/format/delivery"
	"scribe/internal/format/loss"
	"scribe/internal/role/request"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// upstreamBatch is a request to the upstream: whole entries, in order within each category.
type upstreamBatch struct {
	entries []*queueEntry
	queues  []*categoryQueue
	flights []*categoryFlight // the parts of the queues, see categoryFlights; none in a direct request
	ack     scribev1.AckLevel
	bytes   int64
	frames  int
	// retry says that it has queues that were refused before. round is sendQueue.round when it began.
	retry bool
	round int
	// follows says that it was sent although some of each of its queues was in flight.
	follows bool
	// lingered says that its entries are, or are not. unawaited says that nobody waits for any of them.
	lingered, unawaited bool
	// answered says that it has an answer for each frame; took and ordered are the time until the answer, and what it said.
	answered bool
	took     time.Duration
	ordered  bool
	// backfill says that the entries come from the spool; buf is their buffer.
	backfill bool
	buf      *sharedBuffer
	// cautious says that the queue was when they were claimed.
	cautious bool
	// direct says that it is a call of its own, which did not take the turns of its queues.
	direct bool

	cancel context.CancelFunc
	// unused is closed when callers' bytes are no longer used.
	unused chan struct{}
}

// sendQueue decides which entries are accepted, what is sent when, and what goes to the spool. It is a plain state machine:
// events and times go in, batches and appends come out. The spool keeps the only account of its contents, and the queue asks for
// it. The queue does no I/O, starts no goroutines, and reads no clock.
type sendQueue struct {
	cfg      Config
	spooling bool         // there is a spool
	spool    *spool.Spool // asked for its account, and told of records that are done or released; no call that may wait for the disk
	capacity int64        // bytes of the spool that are counted on
	buffers  *buffers.Pool
	counts   outcomeCounts
	gaps     sequenceGaps
	losses   *loss.Ledger // nil = losses are not reported
	delivery *delivery.Ledger // nil = nothing is counted for the category _delivery

	used     int64 // bytes of memory charged
	owed     int64 // bytes in memory only that may have to go to the spool
	diskUsed int64 // bytes of the spool's files, as last reported: more than its records, since it frees whole files, and later
	// diskFullTill is until when appends pause, after the spool reported that it is full although the account has capacity. The
	// spool frees files asynchronously.
	diskFullTill time.Time
	queues       map[string]*categoryQueue
	added        uint64 // entries
	// turn holds every queue with entries, in the order of their turns.
	turn []*categoryQueue
	// backlog holds every queue with frames in the spool only; queues are removed when they are found to have none.
	backlog []*categoryQueue
	// running counts the requests in flight, filling those with backlog; following and fillingBehind count those of each that follow
	// others of all their categories. sending counts their bytes of frames.
	running, filling         int
	following, fillingBehind int
	lingering                int // of live traffic that lingered, and do not follow others
	sending                  int64
	lastLive                 bool // the newest request has live traffic
	pace                     backfillPacer
	closing                  bool
	// draining says that the backlog is forwarded as fast as possible, also when closing.
	draining bool

	// failures and notBefore delay all requests while the upstream is unavailable, which it is since unavailableSince; one
	// request is tried at a time. Failed requests of the same round count as one failure.
	failures         int
	notBefore        time.Time
	unavailableSince time.Time
	round            int
	// retrying counts the requests in flight with queues that were refused before. The first is free, each further one takes a
	// token.
	retrying int
	tokens   float64

	blocked      map[*categoryQueue]struct{} // queues with calls that wait for capacity
	freed        bool                        // capacity may have been freed since the waiting calls last checked
	blockedCalls int
	blockedBytes int64
}

func newQueue(cfg Config, pool *buffers.Pool, random *entropy.Source) sendQueue {
	q := sendQueue{
		cfg: cfg, buffers: pool, queues: make(map[string]*categoryQueue), blocked: make(map[*categoryQueue]struct{}), gaps: newSequenceGaps(),
	}
	if cfg.ReportLosses > 0 {
		q.losses = loss.NewLedger(loss.ByAgent, random)
	}
	q.pace.limit = cfg.BackfillBytesPerSecond
	q.counts.failed, q.counts.dropped = make(map[string]request.Amount), make(map[string]request.Amount)
	if cfg.Spool != nil {
		q.spooling, q.capacity = true, (cfg.Spool.MaxBytes-spareBytes(cfg.Spool))*7/8
	}
	return q
}

// queueOf returns the queue of a category, and creates it if needed. A caller that adds nothing to it calls forgetIdle.
func (q *sendQueue) queueOf(category string) *categoryQueue {
	l := q.queues[category]
	if l == nil {
		l = &categoryQueue{name: category, rule: q.cfg.ruleOf(category)}
		l.live.window.First, l.backfill.window.First = int64(q.cfg.BatchBytes), int64(q.cfg.BatchBytes)
		q.queues[category] = l
	}
	return l
}

// forgetIdle removes an idle queue.
func (q *sendQueue) forgetIdle(l *categoryQueue) {
	if q.isIdle(l) {
		q.leaveTurn(l)
		if l.inBacklog {
			q.backlog = slices.DeleteFunc(q.backlog, func(x *categoryQueue) bool { return x == l })
		}
		delete(q.queues, l.name)
	}
}

// reserveMemory charges the memory of an entry. addEntry or releaseMemory follows.
func (q *sendQueue) reserveMemory(e *queueEntry) {
	q.used += e.charge
	q.queueOf(e.category).bytes += e.charge
}

// releaseMemory releases the charge of an entry, and removes the queue if it is idle.
func (q *sendQueue) releaseMemory(e *queueEntry) {
	q.used -= e.charge
	q.freed = true
	l := q.queues[e.category]
	l.bytes -= e.charge
	q.setOwed(l, e, 0)
	q.forgetIdle(l)
}

// addEntry puts an entry into its queue.
func (q *sendQueue) addEntry(e *queueEntry) {
	q.countEntry(e)
	q.enqueueEntry(e)
}

func (q *sendQueue) enqueueEntry(e *queueEntry) {
	l := q.queues[e.category]
	l.entries = append(l.entries, e)
	l.queued += e.bytes
	q.joinTurn(l)
}

// countEntry counts an entry as in memory, in the order of arrival.
func (q *sendQueue) countEntry(e *queueEntry) {
	l := q.queues[e.category]
	q.added++
	e.number, e.after = q.added, l.end
	for i := range e.frames {
		l.sequenced = l.sequenced || e.frames[i].sequenced
	}
	q.counts.memory = q.counts.memory.Plus(e.amount())
	if q.spooling && e.ack == ackNone {
		q.setOwed(l, e, e.onDisk())
	}
}

func (q *sendQueue) joinTurn(l *categoryQueue) {
	if len(l.entries) > 0 && !l.inTurn {
		l.inTurn = true
		q.turn = append(q.turn, l)
	}
}

func (q *sendQueue) leaveTurn(l *categoryQueue) {
	if l.inTurn {
		l.inTurn = false
		q.turn = slices.DeleteFunc(q.turn, func(x *categoryQueue) bool { return x == l })
	}
}

// releaseBuffer drops a reference to a buffer, and returns the buffer to the pool with the last one.
func (q *sendQueue) releaseBuffer(m *sharedBuffer) {
	if m == nil {
		return
	}
	if m.refs--; m.refs == 0 {
		q.buffers.Put(m.buf)
		m.buf = nil
	}
}

// removeEntry removes an entry that no caller waits for any more, and reports whether it was in the queue and not in flight. The
// caller counts its frames.
func (q *sendQueue) removeEntry(e *queueEntry) bool {
	l := q.queues[e.category]
	if l == nil {
		return false
	}
	i := slices.Index(l.entries, e)
	if i < 0 {
		return false
	}
	l.entries = slices.Delete(l.entries, i, i+1)
	l.queued -= e.bytes
	if len(l.entries) == 0 {
		q.leaveTurn(l)
	}
	q.releaseMemory(e)
	return true
}

// isUnavailable reports whether the upstream is unavailable.
func (q *sendQueue) isUnavailable() bool { return q.failures > 0 }

// beginning counts the requests in flight that do not follow others: those that MaxInFlight bounds.
func (q *sendQueue) beginning() int { return q.running - q.following }

// beginningLike counts those that MaxInFlight bounds together. What lingered and what did not each have slots of their own: so nobody
// waits for requests of frames for which nobody waits.
func (q *sendQueue) beginningLike(lingered bool) int {
	if lingered {
		return q.lingering + q.filling - q.fillingBehind
	}
	return q.beginning() - q.lingering
}

// hasSlot reports whether a queue's first entry may be sent, as far as the number of requests matters.
func (q *sendQueue) hasSlot(l *categoryQueue, slots int) bool {
	return l.live.isBusy() || q.beginningLike(l.entries[0].lingered) < slots
}

// liveSlots is how many of them may run when one with live traffic begins. One slot is kept for the backlog if it has its turn. With a
// single slot, live traffic and backlog take turns.
func (q *sendQueue) liveSlots(now time.Time) int {
	n := q.cfg.MaxInFlight
	if q.filling == 0 && (n > 1 || q.lastLive) && q.fillReady(now) {
		return n - 1
	}
	return n
}

// nextLive returns the next batch of live traffic to send now, or nil.
func (q *sendQueue) nextLive(now time.Time) *upstreamBatch {
	if len(q.turn) == 0 || now.Before(q.notBefore) || q.isUnavailable() && q.running > 0 {
		return nil
	}
	slots := q.liveSlots(now)
	due := func(l *categoryQueue) bool { return q.hasSlot(l, slots) && q.isDue(l, now) }
	first := slices.IndexFunc(q.turn, func(l *categoryQueue) bool { return !l.entries[0].lingered && due(l) })
	if first < 0 {
		first = slices.IndexFunc(q.turn, due)
	}
	if first < 0 {
		return nil
	}
	head := q.turn[first].entries[0]
	b := &upstreamBatch{ack: q.upstreamLevel(head), lingered: head.lingered, round: q.round, follows: q.turn[first].live.isBusy()}
	// Queues that are due get a share each, in turn; queues of another level wait for another batch. A queue that is only
	// lingering may come along.
	sharing := 0
	for _, l := range q.turn {
		if !l.live.isBusy() || q.mayFollow(l) {
			sharing++
		}
	}
	quantum := max(q.cfg.BatchBytes/max(sharing, 1), minQuantum)
	order := slices.Concat(q.turn[first:], q.turn[:first])
	q.turn = q.turn[:0:0]
	for _, l := range order {
		if l.inTurn = b.isFull(q.cfg.BatchBytes) || !q.maySend(l, now) || !q.moveEntries(b, l, quantum); l.inTurn {
			q.turn = append(q.turn, l)
		}
	}
	for _, l := range b.queues { // to the end
		q.joinTurn(l)
	}
	b.unawaited = !slices.ContainsFunc(b.entries, (*queueEntry).isAwaited)
	q.beginRequest(b.retry, b.follows, b.bytes)
	if b.lingered && !b.follows {
		q.lingering++
	}
	q.lastLive = true
	return b
}

// beginRequest counts a request of n bytes that begins; retry says that it has queues that were refused before, follows that it
// follows others.
func (q *sendQueue) beginRequest(retry, follows bool, n int64) {
	q.running++
	q.sending += n
	if follows {
		q.following++
	}
	if !retry {
		return
	}
	if q.retrying > 0 {
		q.tokens--
	}
	q.retrying++
}

// endRequest is the inverse of beginRequest.
func (q *sendQueue) endRequest(retry, follows bool, n int64) {
	q.running--
	q.sending -= n
	if follows {
		q.following--
	}
	if retry {
		q.retrying--
	}
}

// mayRetry reports whether a request may have queues that were refused before. One such request is always allowed in flight;
// further ones take tokens, of which five successful requests make one. So an upstream that refuses much gets little more than
// its normal load.
func (q *sendQueue) mayRetry() bool { return q.retrying == 0 || q.tokens >= 1 }

const (
	tokensPerSuccess = 0.2
	maxTokens        = 10
)

// maySend reports whether a queue may send now, whether or not it is due.
func (q *sendQueue) maySend(l *categoryQueue, now time.Time) bool {
	return !now.Before(l.notBefore) && q.isEligible(l, l.entries[0]) && (l.failures == 0 || q.mayRetry()) && (!l.live.isBusy() || q.mayFollow(l))
}

// upstreamLevel is the acknowledgement level of requests to the upstream. With a spool, frames are kept until they are committed,
// so that callers do not notice an outage anywhere after the agent. Without one, ACK_LEVEL_NONE is passed on.
func (q *sendQueue) upstreamLevel(e *queueEntry) scribev1.AckLevel {
	if e.ack == ackNone && !q.spooling {
		return scribev1.AckLevel_ACK_LEVEL_NONE
	}
	return scribev1.AckLevel_ACK_LEVEL_COMMITTED
}

// isFull reports whether the batch accepts no more entries.
func (b *upstreamBatch) isFull(size int) bool {
	return b.bytes >= int64(size) || len(b.entries) == 1 && b.entries[0].alone
}

// minQuantum is the least number of bytes that a category may put into a batch at its turn.
const minQuantum = 64 << 10

// moveEntries moves entries from a queue to a batch, and reports whether it moved any.
func (q *sendQueue) moveEntries(b *upstreamBatch, l *categoryQueue, quantum int) bool {
	n, size := 0, int64(0)
	check := l.live.newFollowCheck()
	for _, e := range l.entries {
		full := n > 0 && size+e.bytes > int64(quantum) || len(b.entries) > 0 && b.bytes+size+e.bytes > int64(q.cfg.BatchBytes) ||
			n > 0 && l.live.isBusy() && size+e.bytes > l.live.window.Space()
		if full || q.upstreamLevel(e) != b.ack || e.lingered != b.lingered || e.alone && n+len(b.entries) > 0 || !q.isEligible(l, e) {
			break
		}
		held := check.countAllowed(l.entries[:n], e.frames) < len(e.frames)
		if held && (n > 0 || l.live.isBusy()) {
			break
		}
		n++
		size += e.bytes
		if e.alone || held { // a call with frames of several layouts goes as it came, but with no other
			break
		}
	}
	if n == 0 {
		return false
	}
	for _, e := range l.entries[:n] {
		e.batch = b
		b.frames += len(e.frames)
	}
	fl := l.live.beginFlight(slices.Clone(l.entries[:n]), b.ack)
	b.entries = append(b.entries, fl.entries...)
	b.queues, b.flights = append(b.queues, l), append(b.flights, fl)
	b.bytes += size
	b.retry = b.retry || l.failures > 0
	l.entries = slices.Delete(l.entries, 0, n)
	l.queued -= size
	return true
}

// isDue reports whether a queue's first entry should be sent now.
func (q *sendQueue) isDue(l *categoryQueue, now time.Time) bool {
	if !q.maySend(l, now) {
		return false
	}
	e := l.entries[0]
	return q.closing || l.live.isBusy() || e.awaitsUpstream() || l.failures > 0 || l.queued >= int64(q.cfg.BatchBytes) || !now.Before(e.since.Add(q.cfg.Linger))
}

// nextWake is when nextLive or nextFill may have a request if no event comes first; zero = only an event can bring one.
func (q *sendQueue) nextWake(now time.Time) time.Time {
	if q.isUnavailable() && q.running > 0 {
		return time.Time{}
	}
	at := q.nextFillWake(now)
	slots := q.liveSlots(now)
	for _, l := range q.turn {
		if at.Equal(now) {
			break
		}
		if !q.hasSlot(l, slots) || l.live.isBusy() && !q.mayFollow(l) {
			continue // until a request is answered, or more comes
		}
		e := l.entries[0]
		if !q.isEligible(l, e) || l.failures > 0 && !q.mayRetry() {
			continue // until the backlog is forwarded, or another retry is answered
		}
		t := laterOf(laterOf(l.notBefore, q.notBefore), now)
		if !q.isDue(l, t) {
			t = laterOf(t, e.since.Add(q.cfg.Linger))
		}
		at = earlierOf(at, t)
	}
	return at
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlierOf returns the earlier of two times; zero means no time.
func earlierOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// noteUnavailable is the event that a request failed as a whole and may succeed later. It returns the number of consecutive
// failures. Requests that ran beside a failed one do not count as failures of their own.
func (q *sendQueue) noteUnavailable(now time.Time, b *upstreamBatch) int {
	if b.round == q.round || q.failures == 0 {
		q.round++
		q.failures++
		if q.unavailableSince.IsZero() {
			q.unavailableSince = now
		}
	}
	return q.failures
}

// noteAnswer is the event that the upstream answered a request.
func (q *sendQueue) noteAnswer(b *upstreamBatch) {
	q.failures, q.unavailableSince, q.notBefore = 0, time.Time{}, time.Time{}
	if !b.retry {
		q.tokens = min(q.tokens+tokensPerSuccess, maxTokens)
	}
}

// finishLive is the event that a batch of live traffic was answered. Entries that still have frames return to the front of their
// queues, in order; the others are released and returned. held maps the categories that must wait to their pauses.
func (q *sendQueue) finishLive(now time.Time, b *upstreamBatch, held map[*categoryQueue]time.Duration) (done []*queueEntry) {
	if b.direct {
		return q.finishDirect(now, b, held)
	}
	q.endRequest(b.retry, b.follows, b.bytes)
	if b.lingered && !b.follows {
		q.lingering--
	}
	for i, l := range b.queues {
		fl := b.flights[i]
		var left []*queueEntry
		for _, e := range fl.entries {
			e.batch = nil
			if len(e.frames) > 0 {
				left = append(left, e)
			} else {
				done = append(done, e)
			}
		}
		q.setHold(l, now, held)
		l.live.endFlight(now, b, fl, left)
		for _, e := range left {
			q.returnEntry(l, e)
		}
	}
	for _, e := range done {
		q.releaseMemory(e)
	}
	return done
}

// setHold makes a queue wait if it is in held. Otherwise it clears its failures, unless what is in flight follows one.
func (q *sendQueue) setHold(l *categoryQueue, now time.Time, held map[*categoryQueue]time.Duration) {
	if d, ok := held[l]; ok {
		l.notBefore = laterOf(l.notBefore, now.Add(d))
	} else if !l.live.failed && !l.backfill.failed {
		l.failures, l.notBefore = 0, time.Time{}
	}
}
