package logqueue

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Queues holds the queues of all logs. It is safe for concurrent use.
type Queues struct {
	limits Limits
	// backoff returns the pause after that many failures in a row.
	backoff func(failures int) time.Duration
	// troubled counts the logs in trouble. It changes only with mu held.
	troubled atomic.Int32

	mu struct {
		sync.Mutex
		queues map[record.ShardID]*logQueue
		// engineAlive is the time of the engine's last success. A later failure is not a failure of the engine as a whole.
		engineAlive time.Time
	}
}

// Limits bounds Queues.
type Limits struct {
	// Logs bounds the idle logs that are remembered.
	Logs int
	// A log is given up once other writers have refused its appends more than Refusals times in a row, or once opening it has
	// failed for Opening.
	Refusals int
	Opening  time.Duration
}

// New returns empty queues. backoff returns the pause after that many failures in a row.
func New(limits Limits, backoff func(failures int) time.Duration) *Queues {
	q := &Queues{limits: limits, backoff: backoff}
	q.mu.queues = make(map[record.ShardID]*logQueue)
	return q
}

// logQueue is the writer's state of one log, with the queue of waiting entries. Only the entry at the head may be appended, and
// only its part may have the log opened. Queues.mu guards all fields.
type logQueue struct {
	// open: epoch is the writer's own, and only its records were appended since next was learnt.
	open    bool
	opening bool // the engine is being asked to open it
	stalled bool // MarkStalled has returned it, and the queue has not been empty since
	epoch   uint64
	// next is the LSN after all committed records. start is the value of next when the log was opened.
	next, start record.LSN
	// shifts counts the changes to the positions of queued entries: an entry ahead of them left uncommitted or with another number of
	// pointers than it claimed, or a new one was inserted ahead of them. A blob that was put before its turn is appended only if shifts
	// has not changed since, even if the changes cancel each other out. So if two blobs of an epoch claim a position, their
	// footers tell which one got it.
	shifts uint64

	entries []*Entry // in ticket order; insert documents the exception
	trouble *Trouble
}

// Trouble describes the failures of a log since its last successful append.
type Trouble struct {
	Err   error     // the last error
	Retry time.Time // the time of the next attempt
	// Refusals counts the appends in a row that another writer prevented.
	Refusals int

	since time.Time // the time of the first failure
	opens int       // failures in a row to open the log
	final bool      // retrying is useless
}

// Part is the unit of appending. Its turn has come when it has come for all of its entries.
type Part struct {
	// Ticket orders the parts in every queue. The parts of a divided flush have the same ticket.
	Ticket uint64
	// Since is the time at which the part began to wait for its turn.
	Since time.Time
	// Wake has a token after a change that the part may be waiting for.
	Wake lifecycle.WakeChannel

	// Guarded by Queues.mu: blocked is the number of entries that are not at the head of their queues; committing means that the
	// part keeps its turn until it is finished or inspected again.
	blocked    int
	committing bool
}

// NewPart returns a part that waits since now.
func NewPart(ticket uint64, now time.Time) Part {
	return Part{Ticket: ticket, Since: now, Wake: lifecycle.NewWakeChannel()}
}

// Entry is a part's turn in the queue of one log. The part's goroutine owns the exported fields.
type Entry struct {
	Shard record.ShardID
	// OneLog: the logical shard has one log for all writers, so the entry stays when the writer slot changes.
	OneLog bool
	// Pointers is the number of pointers to append. Entries after this one predict their positions from its value in Claim;
	// Finish adds its current value to the log.
	Pointers int

	// Inspect sets the following fields.

	State State
	// Err is the reason why a Failed entry is given up.
	Err error
	// Epoch is the writer's epoch and LSN the position of the first pointer; both are 0 while unknown. Start is the LSN at which
	// the epoch began. Predicted means that LSN assumes the commit of the entries before this one, and Shifts changes when that
	// assumption becomes invalid.
	Epoch      uint64
	LSN, Start record.LSN
	Predicted  bool
	Shifts     uint64

	// Guarded by Queues.mu.
	queue   *logQueue
	part    *Part
	claimed int
}

// State is the state of an entry.
type State uint8

// The states of entries.
const (
	Waiting   State = iota // other entries are before it in its queue
	Ready                  // at the head of a log that is open
	Closed                 // at the head of a log that is not open
	WrongSlot              // at the head of a log of another writer slot, which is not open
	Failed                 // its log is given up
	States                 // the number of states
)

// Claim appends entries to the queues of their logs.
func (q *Queues) Claim(p *Part, entries []*Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.evictIdle()
	for _, e := range entries {
		l := q.queueOf(e.Shard)
		e.queue, e.part, e.claimed = l, p, e.Pointers
		if len(l.entries) > 0 {
			p.blocked++
		}
		l.entries = append(l.entries, e)
	}
}

// queueOf returns the queue of a log, and creates it if the log is unknown.
func (q *Queues) queueOf(s record.ShardID) *logQueue {
	l := q.mu.queues[s]
	if l == nil {
		l = &logQueue{}
		q.mu.queues[s] = l
	}
	return l
}

// evictIdle evicts idle logs when there are too many. The next part opens them again.
func (q *Queues) evictIdle() {
	if len(q.mu.queues) <= q.limits.Logs {
		return
	}
	for s, l := range q.mu.queues { // in map order, which is random
		if len(l.entries) == 0 && !l.opening {
			q.clearTrouble(l)
			delete(q.mu.queues, s)
		}
		if len(q.mu.queues) <= q.limits.Logs*9/10 {
			break
		}
	}
}

// remove removes an entry from the queue of its log.
func (q *Queues) remove(e *Entry) {
	l := e.queue
	i := slices.Index(l.entries, e)
	l.entries = slices.Delete(l.entries, i, i+1)
	switch {
	case i > 0:
		e.part.blocked--
	case len(l.entries) == 0:
		q.clearTrouble(l) // the next entry starts without a history of failures
	default:
		next := l.entries[0].part
		if next.blocked--; next.blocked == 0 {
			next.Wake.WakeUp()
		}
	}
}

// insert puts an entry into the queue of its log in ticket order: before entries with the same ticket, but after a head that is
// being appended.
func (q *Queues) insert(e *Entry) {
	l := e.queue
	l.shifts++
	at := len(l.entries)
	for i, x := range l.entries {
		taken := i == 0 && x.part.committing
		if !taken && x.part.Ticket >= e.part.Ticket {
			at = i
			break
		}
	}
	switch {
	case at > 0:
		e.part.blocked++
	case len(l.entries) > 0:
		l.entries[0].part.blocked++
	}
	l.entries = slices.Insert(l.entries, at, e)
}

// Status is the state of a part.
type Status struct {
	// Counts is the number of entries in each state.
	Counts [States]int
	// Open lists the logs to be opened now. The caller reports the outcome.
	Open []Opening
	// Positioned: every entry has a position, or a predicted one that assumes the commit of everything before it.
	Positioned bool
	// AtHead: every entry is ready.
	AtHead bool
	// Unopenable: only logs that could not be opened, more than once, block the part.
	Unopenable bool
	// Independent: nothing that blocks the part is a failure of the engine as a whole.
	Independent bool
	// Again is the time of the next inspection if nothing happens before; zero if none is needed.
	Again time.Time
}

// Opening is a log to be opened and the number of failed attempts.
type Opening struct {
	Shard  record.ShardID
	Failed int
}

// Inspect returns the state of a part, and sets the states and positions of its entries. If it is the part's turn and commit is
// set, the part keeps its turn until it is finished or inspected again: no entry is inserted before its entries.
func (q *Queues) Inspect(p *Part, entries []*Entry, slot uint16, now time.Time, commit bool) (v Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v.Positioned, v.AtHead, v.Unopenable, v.Independent = true, true, true, true
	for _, e := range entries {
		l := e.queue
		e.Epoch, e.LSN, e.Start, e.Shifts, e.Predicted = 0, 0, l.start, l.shifts, l.entries[0] != e
		switch {
		case e.Predicted:
			e.State = Waiting
			v.Unopenable = false
			e.predict()
		case l.open:
			e.State = Ready
			e.Epoch, e.LSN = l.epoch, l.next
		case !e.OneLog && e.Shard.Writer() != slot:
			e.State = WrongSlot
		default:
			q.inspectClosed(e, now, &v)
		}
		v.Counts[e.State]++
		v.AtHead = v.AtHead && e.State == Ready
		v.Positioned = v.Positioned && (l.open || e.State == WrongSlot)
	}
	if p.committing && !v.AtHead {
		q.yield(p, entries)
	}
	p.committing = v.AtHead && commit
	return v
}

// inspectClosed sets the state of an entry at the head of a log that is not open.
func (q *Queues) inspectClosed(e *Entry, now time.Time, v *Status) {
	l, t := e.queue, e.queue.trouble
	if t != nil && (t.final || t.Refusals > q.limits.Refusals || t.opens > 0 && now.Sub(t.since) >= q.limits.Opening) {
		e.State, e.Err = Failed, t.Err
		return
	}
	e.State = Closed
	failed, since := 0, e.part.Since
	if t != nil {
		failed, since = t.opens, t.since
	}
	v.Unopenable = v.Unopenable && failed >= minOpenFailures
	v.Independent = v.Independent && (t != nil && failed == 0 || q.mu.engineAlive.After(since))
	switch {
	case l.opening:
	case t != nil && now.Before(t.Retry):
		if v.Again.IsZero() || t.Retry.Before(v.Again) {
			v.Again = t.Retry
		}
	default:
		l.opening = true
		v.Open = append(v.Open, Opening{e.Shard, failed})
	}
}

// predict gives an entry that waits the position that it will have when all entries before it have committed.
func (e *Entry) predict() {
	l := e.queue
	if !l.open {
		return
	}
	e.Epoch, e.LSN = l.epoch, l.next
	for _, x := range l.entries[:slices.Index(l.entries, e)] {
		e.LSN += record.LSN(x.claimed)
	}
}

// yield gives a part's turns at the heads of queues back to parts with lower tickets that were inserted after it while it was
// being appended. Parts then wait for each other only in ticket order, so never in a circle.
func (q *Queues) yield(p *Part, entries []*Entry) {
	p.committing = false
	for _, e := range entries {
		l := e.queue // e is at its head
		if len(l.entries) > 1 && l.entries[1].part.Ticket < p.Ticket {
			q.remove(e)
			q.insert(e)
		}
	}
}

// Reassign moves entries from one part to another. They keep their turns in the queues.
func (q *Queues) Reassign(from, to *Part, entries []*Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		e.part = to
		if e.queue.entries[0] != e {
			from.blocked--
			to.blocked++
		}
	}
}

// Move moves entries into the queues of another writer slot's logs, in ticket order. It returns the logs that are no longer
// stalled.
func (q *Queues) Move(entries []*Entry, slot uint16) (resumed []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		q.remove(e)
		e.queue.shifts++
		resumed = e.queue.resume(e.Shard, resumed)
		e.Shard = record.MakeShardID(e.Shard.Category(), e.Shard.Logical(), slot)
		e.queue = q.queueOf(e.Shard)
		q.insert(e)
	}
	return resumed
}

// BeginOpening returns those of some logs that are to be opened although no part waits for them, and marks them: they are neither open
// nor being opened, and not in trouble. The caller opens them at once, and reports the outcome.
func (q *Queues) BeginOpening(shards []record.ShardID) (list []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.evictIdle()
	for _, s := range shards {
		if l := q.queueOf(s); !l.open && !l.opening && l.trouble == nil {
			l.opening = true
			list = append(list, s)
		}
	}
	return list
}

// CloseOutdated marks those of some logs as not open that nothing is appended to, and whose epoch is another one by the engine's states: they
// were removed since, or taken over.
func (q *Queues) CloseOutdated(states []metalog.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range states {
		if l := q.queueOf(s.Shard); l.open && len(l.entries) == 0 && l.epoch < s.Epoch {
			l.open = false
		}
	}
}

// Opened records the engine's states of opened logs.
func (q *Queues) Opened(states []metalog.State, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.engineAlive = now
	for _, s := range states {
		l := q.queueOf(s.Shard)
		l.open, l.opening, l.epoch, l.next, l.start = true, false, s.Epoch, s.NextLSN, s.NextLSN
		if t := l.trouble; t != nil && t.Refusals == 0 {
			q.clearTrouble(l)
		} else if t != nil {
			t.opens = 0
		}
		l.wakeParts()
	}
}

// OpenFailed records that logs could not be opened. They are tried again after a pause.
func (q *Queues) OpenFailed(shards []record.ShardID, err error, now time.Time) {
	q.failOpen(shards, now, func(t *Trouble) {
		t.opens++
		t.Err, t.Retry = err, now.Add(q.backoff(t.opens))
	})
}

// Unusable records that a log accepts no more records, or can never be opened.
func (q *Queues) Unusable(s record.ShardID, err error, now time.Time) {
	q.failOpen([]record.ShardID{s}, now, func(t *Trouble) { t.Err, t.final = err, true })
}

func (q *Queues) failOpen(shards []record.ShardID, now time.Time, note func(*Trouble)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range shards {
		l := q.queueOf(s)
		l.open, l.opening = false, false
		if len(l.entries) > 0 { // otherwise nobody needs the log
			note(q.troubleOf(l, now))
			l.wakeParts()
		}
	}
}

// AppendRefused marks logs whose last append was prevented by another writer. They are opened before they are used again.
func (q *Queues) AppendRefused(entries []*Entry, err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.engineAlive = now
	for _, e := range entries {
		e.queue.open = false
		t := q.troubleOf(e.queue, now)
		t.Refusals++
		t.Err, t.Retry = err, now
		if t.Refusals > 1 {
			// Two writers that take a log from each other must not retry in step.
			t.Retry = now.Add(q.backoff(t.Refusals - 1))
		}
	}
}

// Reopen marks logs that must be opened before the next append.
func (q *Queues) Reopen(entries []*Entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		e.queue.open = false
	}
}

func (q *Queues) troubleOf(l *logQueue, now time.Time) *Trouble {
	if l.trouble == nil {
		l.trouble = &Trouble{since: now}
		q.troubled.Add(1)
	}
	return l.trouble
}

func (q *Queues) clearTrouble(l *logQueue) {
	if l.trouble != nil {
		l.trouble = nil
		q.troubled.Add(-1)
	}
}

// wakeParts wakes all parts in a log's queue after the log was opened or closed.
func (l *logQueue) wakeParts() {
	for _, e := range l.entries {
		e.part.Wake.WakeUp()
	}
}

// MarkStalled marks the logs of entries as stalled until their queues are empty. It returns those that were not marked before.
func (q *Queues) MarkStalled(entries []*Entry) (shards []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range entries {
		if !e.queue.stalled {
			e.queue.stalled = true
			shards = append(shards, e.Shard)
		}
	}
	return shards
}

// Finish removes a part's entries from the queues, and returns the logs that are no longer stalled. committed means that their
// pointers were appended.
func (q *Queues) Finish(entries []*Entry, committed bool, now time.Time) (resumed []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if committed {
		q.mu.engineAlive = now
	}
	for _, e := range entries {
		l := e.queue
		if committed {
			l.next += record.LSN(e.Pointers)
			q.clearTrouble(l)
		}
		if !committed || e.Pointers != e.claimed {
			l.shifts++
		}
		q.remove(e)
		resumed = l.resume(e.Shard, resumed)
	}
	return resumed
}

// resume adds a log to resumed if it was stalled and its queue is empty.
func (l *logQueue) resume(s record.ShardID, resumed []record.ShardID) []record.ShardID {
	if len(l.entries) > 0 || !l.stalled {
		return resumed
	}
	l.stalled = false
	return append(resumed, s)
}

// EngineAlive returns the time of the engine's last success.
func (q *Queues) EngineAlive() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.engineAlive
}

// Busy returns the number of logs that have waiting entries, are stalled or are in trouble.
func (q *Queues) Busy() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.mu.queues {
		if len(l.entries) > 0 || l.stalled || l.trouble != nil {
			n++
		}
	}
	return n
}

// Troubled returns the number of logs in trouble. It takes no lock.
func (q *Queues) Troubled() int { return int(q.troubled.Load()) }

// minOpenFailures and minRefusals are the failures of a log after which new frames for it are refused.
const (
	minOpenFailures = 2
	minRefusals     = 2
)

// RefusalOf returns the reason why frames for a log are refused at present. It is nil unless the log alone, and not the engine,
// has failed several times. Another writer may store such frames at once; here they would only take memory.
func (q *Queues) RefusalOf(s record.ShardID) *Trouble {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.mu.queues[s]
	if l == nil || len(l.entries) == 0 || l.trouble == nil {
		return nil
	}
	t := *l.trouble
	if t.Refusals < minRefusals && (t.opens < minOpenFailures || !q.mu.engineAlive.After(t.since)) {
		return nil
	}
	return &t
}
