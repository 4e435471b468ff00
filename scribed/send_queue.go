package scribed

import (
	"context"
	"slices"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/format/loss"
	"scribe/internal/role/request"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// upstreamBatch is a request to the upstream: whole entries, each category's in order.
type upstreamBatch struct {
	entries []*queueEntry
	queues  []*categoryQueue
	ack     scribev1.AckLevel
	bytes   int64
	frames  int
	// retry: it has queues that were refused before. round is sendQueue.round when it began.
	retry bool
	round int
	// backfill: the entries come from the spool; room is the memory that is reserved for them, buf what they are in.
	backfill bool
	reserved int64
	buf      *sharedBuffer

	cancel context.CancelFunc
	// unused is closed when no caller's bytes are used any more.
	unused chan struct{}
}

// sendQueue decides what is taken in, what is sent when, and what goes to the spool. It is a plain state machine: events and times go
// in, batches and appends come out. What is in the spool it asks the spool, whose account is the only one. It does no I/O, starts nothing,
// and reads no clock.
type sendQueue struct {
	cfg      Config
	spooling bool         // there is a spool
	spool    *spool.Spool // asked for its account, and told of records whose fate is decided: nothing that may wait for the disk
	capacity int64        // of the spool, in bytes, that are counted on
	buffers  *buffers.Pool
	counts   outcomeCounts
	gaps     sequenceGaps
	losses   *loss.Ledger // nil = nobody is told

	used     int64 // bytes of memory charged
	owed     int64 // bytes of what is in memory only, and may have to go to the spool
	diskUsed int64 // by the spool's files, as it said last: more than it holds, since it gives files back whole, and later
	// diskFullTill: the spool said that it is full although the account has room. It gives files back when it has time.
	diskFullTill time.Time
	queues       map[string]*categoryQueue
	added        uint64 // entries
	// turn holds every queue with entries that is not busy, in the order in which they get their turn.
	turn []*categoryQueue
	// backlog holds every queue with frames in the spool only; queues leave it when they are found without.
	backlog []*categoryQueue
	// running are requests on their way, filling those of them with backlog.
	running, filling int
	lastLive         bool // the newest request has live traffic
	pace             backfillPacer
	closing          bool
	// draining: the backlog is forwarded as fast as it goes, also when closing.
	draining bool

	// failures and notBefore hold everything back while the upstream is unavailable: since unavailableSince, one request at a time. Requests of one
	// round that fail are one failure.
	failures         int
	notBefore        time.Time
	unavailableSince time.Time
	round            int
	// retrying are requests on their way that have queues that were refused; one is free, more take a token each.
	retrying int
	tokens   float64

	blocked      map[*categoryQueue]struct{} // with calls that wait for capacity
	freed        bool                        // there may be more room than when they looked
	blockedCalls int
	blockedBytes int64
}

func newQueue(cfg Config, pool *buffers.Pool) sendQueue {
	q := sendQueue{cfg: cfg, buffers: pool, queues: make(map[string]*categoryQueue), blocked: make(map[*categoryQueue]struct{})}
	if cfg.ReportLosses > 0 {
		q.losses = loss.NewLedger(loss.ByAgent)
	}
	q.pace.limit = cfg.BackfillBytesPerSecond
	q.counts.failed, q.counts.dropped = make(map[string]request.Amount), make(map[string]request.Amount)
	if cfg.Spool != nil {
		q.spooling, q.capacity = true, (cfg.Spool.MaxBytes-spareBytes(cfg.Spool))*7/8
	}
	return q
}

// queueOf returns the queue of a category, a new one if there is none. Who does not put anything into it calls forgetIdle.
func (q *sendQueue) queueOf(category string) *categoryQueue {
	l := q.queues[category]
	if l == nil {
		l = &categoryQueue{name: category, rule: q.cfg.ruleOf(category)}
		q.queues[category] = l
	}
	return l
}

// forgetIdle ends a queue of which nothing is left.
func (q *sendQueue) forgetIdle(l *categoryQueue) {
	if q.isIdle(l) {
		q.leaveTurn(l)
		if l.inBacklog {
			q.backlog = slices.DeleteFunc(q.backlog, func(x *categoryQueue) bool { return x == l })
		}
		delete(q.queues, l.name)
	}
}

// reserveMemory charges what an entry will take. add or release follows.
func (q *sendQueue) reserveMemory(e *queueEntry) {
	q.used += e.charge
	q.queueOf(e.category).bytes += e.charge
}

// releaseMemory gives back what an entry takes, and forgets the queue when nothing is left of it.
func (q *sendQueue) releaseMemory(e *queueEntry) {
	q.used -= e.charge
	q.freed = true
	l := q.queues[e.category]
	l.bytes -= e.charge
	q.setOwed(l, e, 0)
	q.forgetIdle(l)
}

// addEntry puts an entry into its queue, and counts it as in memory.
func (q *sendQueue) addEntry(e *queueEntry) {
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
	l.entries = append(l.entries, e)
	q.joinTurn(l)
}

func (q *sendQueue) joinTurn(l *categoryQueue) {
	if len(l.entries) > 0 && !l.busy && !l.inTurn {
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

// releaseBuffer gives memory back that nobody uses any more.
func (q *sendQueue) releaseBuffer(m *sharedBuffer) {
	if m == nil {
		return
	}
	if m.refs--; m.refs == 0 {
		q.buffers.Put(m.buf)
		m.buf = nil
	}
}

// removeEntry takes an entry out that nobody waits for any more, and reports whether it was there and not on its way. Its frames are
// the caller's to count.
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
	if len(l.entries) == 0 {
		q.leaveTurn(l)
	}
	q.releaseMemory(e)
	return true
}

// isUnavailable reports whether the upstream does not answer.
func (q *sendQueue) isUnavailable() bool { return q.failures > 0 }

// liveSlots is how many requests may run when one with live traffic begins: one is kept for the backlog, if that has its turn. If
// there is only one, they take turns.
func (q *sendQueue) liveSlots(now time.Time) int {
	n := q.cfg.MaxInFlight
	if q.filling == 0 && (n > 1 || q.lastLive) && q.fillReady(now) {
		return n - 1
	}
	return n
}

// nextLive returns the next batch of live traffic to send now; nil when there is none.
func (q *sendQueue) nextLive(now time.Time) *upstreamBatch {
	if q.running >= q.liveSlots(now) || now.Before(q.notBefore) || q.isUnavailable() && q.running > 0 {
		return nil
	}
	first := slices.IndexFunc(q.turn, func(l *categoryQueue) bool { return q.isDue(l, now) })
	if first < 0 {
		return nil
	}
	b := &upstreamBatch{ack: q.upstreamLevel(q.turn[first].entries[0]), round: q.round}
	// Lanes that are due get a share each, in turn; queues of another level wait for another batch. A queue that only lingers may
	// come along.
	quantum := max(q.cfg.BatchBytes/max(len(q.turn), 1), minQuantum)
	order := slices.Concat(q.turn[first:], q.turn[:first])
	q.turn = q.turn[:0:0]
	for _, l := range order {
		if l.inTurn = b.isFull(q.cfg.BatchBytes) || !q.maySend(l, now) || !q.moveEntries(b, l, quantum); l.inTurn {
			q.turn = append(q.turn, l)
		}
	}
	q.countStart(b)
	q.lastLive = true
	return b
}

// countStart counts a batch that is sent.
func (q *sendQueue) countStart(b *upstreamBatch) {
	q.running++
	if !b.retry {
		return
	}
	if q.retrying > 0 {
		q.tokens--
	}
	q.retrying++
}

// mayRetry reports whether a request may have queues that were refused before. Such a request can always be on its way, but only
// one: more take tokens, of which five requests that succeed make one. So an upstream that refuses much gets little more than its
// normal load.
func (q *sendQueue) mayRetry() bool { return q.retrying == 0 || q.tokens >= 1 }

const (
	tokensPerSuccess = 0.2
	maxTokens        = 10
)

// maySend reports whether a queue may send now, if it is due or not.
func (q *sendQueue) maySend(l *categoryQueue, now time.Time) bool {
	return !now.Before(l.notBefore) && q.isEligible(l, l.entries[0]) && (l.failures == 0 || q.mayRetry())
}

// upstreamLevel is what the upstream is asked to wait for. With a spool frames are kept until they are committed, so that an outage
// anywhere behind the agent is one that its callers do not notice; without one, none is passed on.
func (q *sendQueue) upstreamLevel(e *queueEntry) scribev1.AckLevel {
	if e.ack == ackNone && !q.spooling {
		return scribev1.AckLevel_ACK_LEVEL_NONE
	}
	return scribev1.AckLevel_ACK_LEVEL_COMMITTED
}

// isFull reports whether nothing may join the batch.
func (b *upstreamBatch) isFull(size int) bool {
	return b.bytes >= int64(size) || len(b.entries) == 1 && b.entries[0].alone
}

// minQuantum is the least that a category may put into a batch at its turn, in bytes.
const minQuantum = 64 << 10

// moveEntries moves entries from a queue to a batch and reports whether there were any.
func (q *sendQueue) moveEntries(b *upstreamBatch, l *categoryQueue, quantum int) bool {
	n, size := 0, int64(0)
	for _, e := range l.entries {
		full := n > 0 && size+e.bytes > int64(quantum) || len(b.entries) > 0 && b.bytes+size+e.bytes > int64(q.cfg.BatchBytes)
		if full || q.upstreamLevel(e) != b.ack || e.alone && n+len(b.entries) > 0 || !q.isEligible(l, e) {
			break
		}
		n++
		size += e.bytes
		if e.alone {
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
	l.inFlight = append(l.inFlight[:0], l.entries[:n]...)
	b.entries = append(b.entries, l.inFlight...)
	b.queues = append(b.queues, l)
	b.bytes += size
	b.retry = b.retry || l.failures > 0
	l.entries = slices.Delete(l.entries, 0, n)
	l.busy = true
	return true
}

// isDue reports whether a queue's first entry should be sent now.
func (q *sendQueue) isDue(l *categoryQueue, now time.Time) bool {
	if !q.maySend(l, now) {
		return false
	}
	e := l.entries[0]
	return q.closing || e.awaitsUpstream() || l.failures > 0 || l.bytes >= int64(q.cfg.BatchBytes) || !now.Before(e.since.Add(q.cfg.Linger))
}

// nextWake is when next or nextFill may have a batch if nothing else happens before; zero when only an event can bring one.
func (q *sendQueue) nextWake(now time.Time) time.Time {
	if q.running >= q.cfg.MaxInFlight || q.isUnavailable() && q.running > 0 {
		return time.Time{}
	}
	at := q.nextFillWake(now)
	if q.running >= q.liveSlots(now) {
		return at
	}
	for _, l := range q.turn {
		if at.Equal(now) {
			break
		}
		e := l.entries[0]
		if !q.isEligible(l, e) || l.failures > 0 && !q.mayRetry() {
			continue // until the backlog, or another retry, is answered
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

// earlierOf returns the earlier of two times of which zero is none.
func earlierOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// noteUnavailable is the event that a request failed as a whole and may succeed later; it returns which failure in a row that is.
// Requests that ran beside one that failed are no failures of their own.
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

// finishLive is the event that a batch of live traffic is answered: entries that still have frames go back to the front of their
// queues, in order; the others are released and returned. held are categories that are to wait.
func (q *sendQueue) finishLive(now time.Time, b *upstreamBatch, held map[*categoryQueue]time.Duration) (done []*queueEntry) {
	q.running--
	if b.retry {
		q.retrying--
	}
	back := make(map[string][]*queueEntry, len(b.queues))
	for _, e := range b.entries {
		e.batch = nil
		if len(e.frames) > 0 {
			back[e.category] = append(back[e.category], e)
		} else {
			done = append(done, e)
		}
	}
	for _, l := range b.queues {
		l.busy = false
		clear(l.inFlight)
		l.inFlight = l.inFlight[:0]
		if back := back[l.name]; len(back) > 0 {
			l.entries = append(back, l.entries...)
		}
		q.setHold(l, now, held)
		q.joinTurn(l)
	}
	for _, e := range done {
		q.releaseMemory(e)
	}
	return done
}

// setHold lets a queue wait, or ends that.
func (q *sendQueue) setHold(l *categoryQueue, now time.Time, held map[*categoryQueue]time.Duration) {
	if d, ok := held[l]; ok {
		l.notBefore = now.Add(d)
	} else {
		l.failures, l.notBefore = 0, time.Time{}
	}
}
