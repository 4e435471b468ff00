package logqueue

import (
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Queues are the queues of all logs. They are safe for concurrent use.
type Queues struct {
	limits Limits
	// backoff is how long to wait after so many failures in a row.
	backoff func(failures int) time.Duration
	// troubled counts the logs with trouble. It changes with mu held.
	troubled atomic.Int32

	mu struct {
		sync.Mutex
		queues map[record.ShardID]*logQueue
		// engineAlive is when the engine last did something for us: what fails since then is not the engine as a whole.
		engineAlive time.Time
	}
}

// Limits of Queues.
type Limits struct {
	// Logs is how many logs are remembered while nothing waits for them.
	Logs int
	// A log is given up that another writer has taken more than Refusals times in a row, or that could not be opened for Opening.
	Refusals int
	Opening  time.Duration
}

// New returns empty queues. backoff is how long to wait after so many failures in a row.
func New(limits Limits, backoff func(failures int) time.Duration) *Queues {
	q := &Queues{limits: limits, backoff: backoff}
	q.mu.queues = make(map[record.ShardID]*logQueue)
	return q
}

// logQueue is what the writer knows of one log, and who waits for it. Only the entry at the head may be appended, and only its part may
// have the log opened. Queues.mu guards all fields.
type logQueue struct {
	// open: epoch is the writer's, and no record but its own was appended since next was learnt.
	open  bool
	epoch uint64
	// next is the LSN after everything that is committed, start what it was when the log was opened.
	next, start record.LSN
	// shifts counts what has changed the positions of entries that were in the queue: entries ahead of them that left it otherwise than
	// they were claimed, or came before them. A blob that was put ahead of its turn is appended only if nothing has since then, even if
	// changes have cancelled each other out: so of two blobs of an epoch that claim a position, their footers tell which one got it.
	shifts uint64

	head, tail *Entry // linked by Entry.next, in the order of tickets but for what insert says

	opening bool // somebody asks the engine for it
	stalled bool // MarkStalled has returned it, and the queue was not empty since
	trouble *Trouble
}

// Trouble is what went wrong with a log since the last append that succeeded.
type Trouble struct {
	Err   error     // the last
	Retry time.Time // when to try again
	// Refusals counts appends that another writer prevented, one after another.
	Refusals int

	since time.Time // when it began
	opens int       // failures to open it, one after another
	final bool      // trying again is of no use
}

// Part is what is appended at once: its turn has come when it has come for all of its entries.
type Part struct {
	// Ticket orders the parts in every queue. Parts that were divided have the same.
	Ticket uint64
	// Since is when it began to wait for its turn.
	Since time.Time
	// Wake has a token when something has changed that the part may be waiting for.
	Wake chan struct{}

	// Guarded by Queues.mu: how many entries are not at the head of their queues, and whether it is its turn for good.
	blocked    int
	committing bool
}

// NewPart returns a part that waits from now on.
func NewPart(ticket uint64, now time.Time) Part {
	return Part{Ticket: ticket, Since: now, Wake: make(chan struct{}, 1)}
}

// wakeUp wakes the part's goroutine if it waits.
func (p *Part) wakeUp() {
	select {
	case p.Wake <- struct{}{}:
	default:
	}
}

// Entry is a part's turn in the queue of one log. The part's goroutine owns the exported fields.
type Entry struct {
	Shard record.ShardID
	// OneLog: the logical shard has one log, whoever writes it, so the entry stays when the writer slot changes.
	OneLog bool
	// Pointers is how many pointers it appends. What it is in Claim is what entries after it count on; what it is in Finish is added
	// to the log.
	Pointers int

	// What follows is set by Inspect.

	State State
	// Err is why a Failed entry is given up.
	Err error
	// Epoch and LSN are the writer's epoch and where the first pointer goes; 0 while not known. Start is the LSN at which the epoch began.
	// Predicted says that LSN counts on the entries before it in its queue, and Shifts changes with what they counted on.
	Epoch      uint64
	LSN, Start record.LSN
	Predicted  bool
	Shifts     uint64

	// Guarded by Queues.mu.
	queue   *logQueue
	part    *Part
	next    *Entry
	claimed int
}

// State is how an entry stands.
type State uint8

// States of entries.
const (
	Waiting   State = iota // others are before it in its queue
	Ready                  // at the head of a log that is open
	Closed                 // at the head of a log that is not
	WrongSlot              // at the head of a log of another writer slot, which is not open
	Failed                 // its log is given up
	States                 // their number
)

// Claim puts entries at the ends of the queues of their logs.
func (q *Queues) Claim(p *Part, entries iter.Seq[*Entry]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.evictIdle()
	for e := range entries {
		l := q.queueOf(e.Shard)
		e.queue, e.part, e.claimed = l, p, e.Pointers
		if l.head == nil {
			l.head, l.tail = e, e
			continue
		}
		l.tail.next = e
		l.tail = e
		p.blocked++
	}
}

// queueOf returns a log's queue, a new one when the log is not known.
func (q *Queues) queueOf(s record.ShardID) *logQueue {
	l := q.mu.queues[s]
	if l == nil {
		l = &logQueue{}
		q.mu.queues[s] = l
	}
	return l
}

// evictIdle forgets logs that are not in use when there are too many: the next part opens them again.
func (q *Queues) evictIdle() {
	if len(q.mu.queues) <= q.limits.Logs {
		return
	}
	for s, l := range q.mu.queues { // in the map's order: random
		if l.head == nil && !l.opening {
			q.clearTrouble(l)
			delete(q.mu.queues, s)
		}
		if len(q.mu.queues) <= q.limits.Logs*9/10 {
			break
		}
	}
}

// remove takes an entry out of the queue of its log.
func (q *Queues) remove(e *Entry) {
	l := e.queue
	if l.head != e {
		before := l.head
		for before.next != e {
			before = before.next
		}
		before.next = e.next
		if l.tail == e {
			l.tail = before
		}
		e.part.blocked--
		e.next = nil
		return
	}
	l.head, e.next = e.next, nil
	if l.head == nil {
		l.tail = nil
		q.clearTrouble(l) // what comes next begins anew
		return
	}
	l.head.part.blocked--
	if l.head.part.blocked == 0 {
		l.head.part.wakeUp()
	}
}

// insert puts an entry into the queue of its log by its ticket, before what was cut with it, but after a head that is being appended.
func (q *Queues) insert(e *Entry) {
	l := e.queue
	l.shifts++
	var before *Entry
	for x := l.head; x != nil; x = x.next {
		taken := x == l.head && x.part.committing
		if !taken && x.part.Ticket >= e.part.Ticket {
			break
		}
		before = x
	}
	switch {
	case l.head == nil:
		l.head, l.tail = e, e
	case before == nil:
		l.head.part.blocked++
		e.next, l.head = l.head, e
	default:
		e.next, before.next = before.next, e
		if l.tail == before {
			l.tail = e
		}
		e.part.blocked++
	}
}

// Status is how a part stands.
type Status struct {
	// Counts are how many entries are in each state.
	Counts [States]int
	// Open are logs to be opened now. The caller reports the outcome.
	Open []Opening
	// Positioned: every entry has a position, or the one it will have when everything before it has committed.
	Positioned bool
	// AtHead: every entry is ready.
	AtHead bool
	// Unopenable: nothing is in the way but logs that could not be opened, and more than once.
	Unopenable bool
	// Independent: what is in the way has nothing to do with the engine as a whole.
	Independent bool
	// Again is when to look again if nothing happens before; zero when there is no need.
	Again time.Time
}

// Opening is a log to be opened and how often that has failed.
type Opening struct {
	Shard  record.ShardID
	Failed int
}

// Inspect finds out how a part stands, and sets its entries' states and positions. When it is the part's turn, and commit is set, it
// stays so until the part is finished or inspected again: nobody comes before it any more.
func (q *Queues) Inspect(p *Part, entries iter.Seq[*Entry], slot uint16, now time.Time, commit bool) (v Status) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v.Positioned, v.AtHead, v.Unopenable, v.Independent = true, true, true, true
	for e := range entries {
		l := e.queue
		e.Epoch, e.LSN, e.Start, e.Shifts, e.Predicted = 0, 0, l.start, l.shifts, l.head != e
		switch {
		case l.head != e:
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

// inspectClosed looks at an entry at the head of a log that is not open.
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

// predict gives an entry after others the position that it will have when all of them have committed.
func (e *Entry) predict() {
	l := e.queue
	if !l.open {
		return
	}
	e.Epoch, e.LSN = l.epoch, l.next
	for x := l.head; x != e; x = x.next {
		e.LSN += record.LSN(x.claimed)
	}
}

// yield gives a part's turns at the heads of queues back to what was cut before it, and was inserted after it while it was being
// appended: parts that wait for each other by their tickets alone never do so in a circle.
func (q *Queues) yield(p *Part, entries iter.Seq[*Entry]) {
	p.committing = false
	for e := range entries {
		if x := e.next; x != nil && x.part.Ticket < p.Ticket {
			q.remove(e)
			q.insert(e)
		}
	}
}

// Reassign gives entries of a part to another one. They keep their turns in the queues.
func (q *Queues) Reassign(from, to *Part, entries iter.Seq[*Entry]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := range entries {
		e.part = to
		if e.queue.head != e {
			from.blocked--
			to.blocked++
		}
	}
}

// Move puts entries into the queues of another writer slot's logs, by their tickets. It returns the logs that are not stalled any more.
func (q *Queues) Move(entries iter.Seq[*Entry], slot uint16) (resumed []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := range entries {
		q.remove(e)
		e.queue.shifts++
		resumed = e.queue.resume(e.Shard, resumed)
		e.Shard = record.MakeShardID(e.Shard.Category(), e.Shard.Logical(), slot)
		e.queue = q.queueOf(e.Shard)
		q.insert(e)
	}
	return resumed
}

// Opened takes over what the engine says of logs that were opened.
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

// OpenFailed says why logs could not be opened. They are tried again after a pause.
func (q *Queues) OpenFailed(shards []record.ShardID, err error, now time.Time) {
	q.failOpen(shards, now, func(t *Trouble) {
		t.opens++
		t.Err, t.Retry = err, now.Add(q.backoff(t.opens))
	})
}

// Unusable says that a log takes no more records, or cannot be opened at all.
func (q *Queues) Unusable(s record.ShardID, err error, now time.Time) {
	q.failOpen([]record.ShardID{s}, now, func(t *Trouble) { t.Err, t.final = err, true })
}

func (q *Queues) failOpen(shards []record.ShardID, now time.Time, note func(*Trouble)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range shards {
		l := q.queueOf(s)
		l.open, l.opening = false, false
		if l.head != nil { // else nobody wants it any more
			note(q.troubleOf(l, now))
			l.wakeParts()
		}
	}
}

// AppendRefused marks logs whose last append another writer has prevented: they are opened before they are used again.
func (q *Queues) AppendRefused(entries iter.Seq[*Entry], err error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.engineAlive = now
	for e := range entries {
		e.queue.open = false
		t := q.troubleOf(e.queue, now)
		t.Refusals++
		t.Err, t.Retry = err, now
		if t.Refusals > 1 {
			// Two writers of a log that take it from each other must not do so in step.
			t.Retry = now.Add(q.backoff(t.Refusals - 1))
		}
	}
}

// Reopen marks logs as ones that must be opened before they are appended to.
func (q *Queues) Reopen(entries iter.Seq[*Entry]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := range entries {
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

// wakeParts tells everyone in a log's queue that the log is open or is not.
func (l *logQueue) wakeParts() {
	for e := l.head; e != nil; e = e.next {
		e.part.wakeUp()
	}
}

// MarkStalled marks the logs of entries as ones that do not get on, until their queues are empty. It returns those that were not marked.
func (q *Queues) MarkStalled(entries iter.Seq[*Entry]) (shards []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for e := range entries {
		if !e.queue.stalled {
			e.queue.stalled = true
			shards = append(shards, e.Shard)
		}
	}
	return shards
}

// Finish takes a part's entries out of the queues, and returns the logs that are not stalled any more. committed says that their
// pointers were appended.
func (q *Queues) Finish(entries iter.Seq[*Entry], committed bool, now time.Time) (resumed []record.ShardID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if committed {
		q.mu.engineAlive = now
	}
	for e := range entries {
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

// resume adds a log to those that are not stalled any more, if nothing waits for it.
func (l *logQueue) resume(s record.ShardID, resumed []record.ShardID) []record.ShardID {
	if l.head != nil || !l.stalled {
		return resumed
	}
	l.stalled = false
	return append(resumed, s)
}

// EngineAlive is when the engine last did something.
func (q *Queues) EngineAlive() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.engineAlive
}

// Busy is how many logs somebody waits for, are stalled or have trouble.
func (q *Queues) Busy() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.mu.queues {
		if l.head != nil || l.stalled || l.trouble != nil {
			n++
		}
	}
	return n
}

// Troubled is how many logs have trouble. It takes no lock.
func (q *Queues) Troubled() int { return int(q.troubled.Load()) }

// minOpenFailures and minRefusals are how often a log must have failed before new frames for it are refused.
const (
	minOpenFailures = 2
	minRefusals     = 2
)

// RefusalOf is why frames for a log are not taken at present: nil, unless it alone, and not the engine, has been in trouble for some
// attempts. Elsewhere they may be stored at once; here they would only take memory.
func (q *Queues) RefusalOf(s record.ShardID) *Trouble {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.mu.queues[s]
	if l == nil || l.head == nil || l.trouble == nil {
		return nil
	}
	t := *l.trouble
	if t.Refusals < minRefusals && (t.opens < minOpenFailures || !q.mu.engineAlive.After(t.since)) {
		return nil
	}
	return &t
}
