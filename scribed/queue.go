package scribed

import (
	"context"
	"slices"
	"time"

	"scribe/internal/base/buffers"
	"scribe/internal/format/loss"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// batch is a request to the upstream: whole entries, each category's in order.
type batch struct {
	entries []*entry
	lanes   []*lane
	ack     scribev1.AckLevel
	bytes   int64
	frames  int
	// retry: it has lanes that were refused before. round is queue.round when it began.
	retry bool
	round int
	// backfill: the entries come from the spool; room is the memory that is reserved for them, buf what they are in.
	backfill bool
	room     int64
	buf      *memory

	cancel context.CancelFunc
	// unused is closed when no caller's bytes are used any more.
	unused chan struct{}
}

// queue decides what is taken in, what is sent when, and what goes to the spool. It is a plain state machine: events and times go
// in, batches and appends come out. What is in the spool it asks the spool, whose account is the only one. It does no I/O, starts nothing,
// and reads no clock.
type queue struct {
	cfg      Config
	spooling bool         // there is a spool
	spool    *spool.Spool // asked for its account, and told of records whose fate is decided: nothing that may wait for the disk
	capacity int64        // of the spool, in bytes, that are counted on
	buffers  *buffers.Pool
	counts   counts
	gaps     gaps
	losses   *loss.Ledger // nil = nobody is told

	used     int64 // bytes of memory charged
	owed     int64 // bytes of what is in memory only, and may have to go to the spool
	diskUsed int64 // by the spool's files, as it said last: more than it holds, since it gives files back whole, and later
	// diskFullTill: the spool said that it is full although the account has room. It gives files back when it has time.
	diskFullTill time.Time
	lanes        map[string]*lane
	added        uint64 // entries
	// turn holds every lane with entries that is not busy, in the order in which they get their turn.
	turn []*lane
	// backlog holds every lane with frames in the spool only; lanes leave it when they are found without.
	backlog []*lane
	// running are requests on their way, filling those of them with backlog.
	running, filling int
	lastLive         bool // the newest request has live traffic
	pace             pacer
	closing          bool
	// draining: the backlog is forwarded as fast as it goes, also when closing.
	draining bool

	// failures and notBefore hold everything back while the upstream is away: since awaySince, one request at a time. Requests of one
	// round that fail are one failure.
	failures  int
	notBefore time.Time
	awaySince time.Time
	round     int
	// retrying are requests on their way that have lanes that were refused; one is free, more take a token each.
	retrying int
	tokens   float64

	blocked      map[*lane]struct{} // with calls that wait for room
	freed        bool               // there may be more room than when they looked
	blockedCalls int
	blockedBytes int64
}

func newQueue(cfg Config, pool *buffers.Pool) queue {
	q := queue{cfg: cfg, buffers: pool, lanes: make(map[string]*lane), blocked: make(map[*lane]struct{})}
	if cfg.ReportLosses > 0 {
		q.losses = loss.NewLedger(loss.ByAgent)
	}
	q.pace.limit = cfg.BackfillBytesPerSecond
	q.counts.failed, q.counts.dropped = make(map[string]amount), make(map[string]amount)
	if cfg.Spool != nil {
		q.spooling, q.capacity = true, (cfg.Spool.MaxBytes-spareBytes(cfg.Spool))*7/8
	}
	return q
}

// lane returns the lane of a category, a new one if there is none. Who does not put anything into it calls forget.
func (q *queue) lane(category string) *lane {
	l := q.lanes[category]
	if l == nil {
		l = &lane{name: category, rule: q.cfg.ruleOf(category)}
		q.lanes[category] = l
	}
	return l
}

// forget ends a lane of which nothing is left.
func (q *queue) forget(l *lane) {
	if q.idle(l) {
		q.leaveTurn(l)
		if l.inBacklog {
			q.backlog = slices.DeleteFunc(q.backlog, func(x *lane) bool { return x == l })
		}
		delete(q.lanes, l.name)
	}
}

// reserve charges what an entry will take. add or release follows.
func (q *queue) reserve(e *entry) {
	q.used += e.charge
	q.lane(e.category).bytes += e.charge
}

// release gives back what an entry takes, and forgets the lane when nothing is left of it.
func (q *queue) release(e *entry) {
	q.used -= e.charge
	q.freed = true
	l := q.lanes[e.category]
	l.bytes -= e.charge
	q.owe(l, e, 0)
	q.forget(l)
}

// add puts an entry into its lane, and counts it as in memory.
func (q *queue) add(e *entry) {
	l := q.lanes[e.category]
	q.added++
	e.number, e.after = q.added, l.end
	for i := range e.frames {
		l.sequenced = l.sequenced || e.frames[i].sequenced
	}
	q.counts.memory.plus(e.amount())
	if q.spooling && e.ack == ackNone {
		q.owe(l, e, e.onDisk())
	}
	l.entries = append(l.entries, e)
	q.joinTurn(l)
}

func (q *queue) joinTurn(l *lane) {
	if len(l.entries) > 0 && !l.busy && !l.inTurn {
		l.inTurn = true
		q.turn = append(q.turn, l)
	}
}

func (q *queue) leaveTurn(l *lane) {
	if l.inTurn {
		l.inTurn = false
		q.turn = slices.DeleteFunc(q.turn, func(x *lane) bool { return x == l })
	}
}

// unref gives memory back that nobody uses any more.
func (q *queue) unref(m *memory) {
	if m == nil {
		return
	}
	if m.refs--; m.refs == 0 {
		q.buffers.Put(m.buf)
		m.buf = nil
	}
}

// withdraw takes an entry out that nobody waits for any more, and reports whether it was there and not on its way. Its frames are
// the caller's to count.
func (q *queue) withdraw(e *entry) bool {
	l := q.lanes[e.category]
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
	q.release(e)
	return true
}

// away reports whether the upstream does not answer.
func (q *queue) away() bool { return q.failures > 0 }

// liveSlots is how many requests may run when one with live traffic begins: one is kept for the backlog, if that has its turn. If
// there is only one, they take turns.
func (q *queue) liveSlots(now time.Time) int {
	n := q.cfg.MaxInFlight
	if q.filling == 0 && (n > 1 || q.lastLive) && q.fillReady(now) {
		return n - 1
	}
	return n
}

// next returns the next batch of live traffic to send now; nil when there is none.
func (q *queue) next(now time.Time) *batch {
	if q.running >= q.liveSlots(now) || now.Before(q.notBefore) || q.away() && q.running > 0 {
		return nil
	}
	first := slices.IndexFunc(q.turn, func(l *lane) bool { return q.due(l, now) })
	if first < 0 {
		return nil
	}
	b := &batch{ack: q.level(q.turn[first].entries[0]), round: q.round}
	// Lanes that are due get a share each, in turn; lanes of another level wait for another batch. A lane that only lingers may
	// come along.
	quantum := max(q.cfg.BatchBytes/max(len(q.turn), 1), minQuantum)
	order := slices.Concat(q.turn[first:], q.turn[:first])
	q.turn = q.turn[:0:0]
	for _, l := range order {
		if l.inTurn = b.full(q.cfg.BatchBytes) || !q.may(l, now) || !q.take(b, l, quantum); l.inTurn {
			q.turn = append(q.turn, l)
		}
	}
	q.start(b)
	q.lastLive = true
	return b
}

// start counts a batch that is sent.
func (q *queue) start(b *batch) {
	q.running++
	if !b.retry {
		return
	}
	if q.retrying > 0 {
		q.tokens--
	}
	q.retrying++
}

// mayRetry reports whether a request may have lanes that were refused before. Such a request can always be on its way, but only
// one: more take tokens, of which five requests that succeed make one. So an upstream that refuses much gets little more than its
// normal load.
func (q *queue) mayRetry() bool { return q.retrying == 0 || q.tokens >= 1 }

const (
	tokensPerSuccess = 0.2
	maxTokens        = 10
)

// may reports whether a lane may send now, if it is due or not.
func (q *queue) may(l *lane, now time.Time) bool {
	return !now.Before(l.notBefore) && q.eligible(l, l.entries[0]) && (l.failures == 0 || q.mayRetry())
}

// level is what the upstream is asked to wait for. With a spool frames are kept until they are committed, so that an outage
// anywhere behind the agent is one that its callers do not notice; without one, none is passed on.
func (q *queue) level(e *entry) scribev1.AckLevel {
	if e.ack == ackNone && !q.spooling {
		return scribev1.AckLevel_ACK_LEVEL_NONE
	}
	return scribev1.AckLevel_ACK_LEVEL_COMMITTED
}

// full reports whether nothing may join the batch.
func (b *batch) full(size int) bool {
	return b.bytes >= int64(size) || len(b.entries) == 1 && b.entries[0].alone
}

// minQuantum is the least that a category may put into a batch at its turn, in bytes.
const minQuantum = 64 << 10

// take moves entries from a lane to a batch and reports whether there were any.
func (q *queue) take(b *batch, l *lane, quantum int) bool {
	n, size := 0, int64(0)
	for _, e := range l.entries {
		full := n > 0 && size+e.bytes > int64(quantum) || len(b.entries) > 0 && b.bytes+size+e.bytes > int64(q.cfg.BatchBytes)
		if full || q.level(e) != b.ack || e.alone && n+len(b.entries) > 0 || !q.eligible(l, e) {
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
	l.flying = append(l.flying[:0], l.entries[:n]...)
	b.entries = append(b.entries, l.flying...)
	b.lanes = append(b.lanes, l)
	b.bytes += size
	b.retry = b.retry || l.failures > 0
	l.entries = slices.Delete(l.entries, 0, n)
	l.busy = true
	return true
}

// due reports whether a lane's first entry should be sent now.
func (q *queue) due(l *lane, now time.Time) bool {
	if !q.may(l, now) {
		return false
	}
	e := l.entries[0]
	return q.closing || e.waits() || l.failures > 0 || l.bytes >= int64(q.cfg.BatchBytes) || !now.Before(e.since.Add(q.cfg.Linger))
}

// wake is when next or nextFill may have a batch if nothing else happens before; zero when only an event can bring one.
func (q *queue) wake(now time.Time) time.Time {
	if q.running >= q.cfg.MaxInFlight || q.away() && q.running > 0 {
		return time.Time{}
	}
	at := q.wakeFill(now)
	if q.running >= q.liveSlots(now) {
		return at
	}
	for _, l := range q.turn {
		if at.Equal(now) {
			break
		}
		e := l.entries[0]
		if !q.eligible(l, e) || l.failures > 0 && !q.mayRetry() {
			continue // until the backlog, or another retry, is answered
		}
		t := maxTime(maxTime(l.notBefore, q.notBefore), now)
		if !q.due(l, t) {
			t = maxTime(t, e.since.Add(q.cfg.Linger))
		}
		at = earlier(at, t)
	}
	return at
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlier returns the earlier of two times of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// failed is the event that a request failed as a whole and may succeed later; it returns which failure in a row that is.
// Requests that ran beside one that failed are no failures of their own.
func (q *queue) failed(now time.Time, b *batch) int {
	if b.round == q.round || q.failures == 0 {
		q.round++
		q.failures++
		if q.awaySince.IsZero() {
			q.awaySince = now
		}
	}
	return q.failures
}

// alive is the event that the upstream answered a request.
func (q *queue) alive(b *batch) {
	q.failures, q.awaySince, q.notBefore = 0, time.Time{}, time.Time{}
	if !b.retry {
		q.tokens = min(q.tokens+tokensPerSuccess, maxTokens)
	}
}

// settled is the event that a batch of live traffic is answered: entries that still have frames go back to the front of their
// lanes, in order; the others are released and returned. held are categories that are to wait.
func (q *queue) settled(now time.Time, b *batch, held map[*lane]time.Duration) (done []*entry) {
	q.running--
	if b.retry {
		q.retrying--
	}
	back := make(map[string][]*entry, len(b.lanes))
	for _, e := range b.entries {
		e.batch = nil
		if len(e.frames) > 0 {
			back[e.category] = append(back[e.category], e)
		} else {
			done = append(done, e)
		}
	}
	for _, l := range b.lanes {
		l.busy = false
		clear(l.flying)
		l.flying = l.flying[:0]
		if back := back[l.name]; len(back) > 0 {
			l.entries = append(back, l.entries...)
		}
		q.hold(l, now, held)
		q.joinTurn(l)
	}
	for _, e := range done {
		q.release(e)
	}
	return done
}

// hold lets a lane wait, or ends that.
func (q *queue) hold(l *lane, now time.Time, held map[*lane]time.Duration) {
	if d, ok := held[l]; ok {
		l.notBefore = now.Add(d)
	} else {
		l.failures, l.notBefore = 0, time.Time{}
	}
}
