package scribed

import (
	"slices"
	"time"

	"scribe/internal/buffers"
	scribev1 "scribe/proto/scribe/v1"
)

// frame is one frame in memory.
type frame struct {
	bytes     []byte // of the entry's memory
	messages  int
	sequenced bool
	index     int  // in the caller's request
	attempts  int  // that ended with REASON_OUT_OF_SEQUENCE
	unsure    bool // an attempt ended with an unknown outcome: it may be stored whatever a later one says
}

// entry is what one request brought for one category: its frames in order. It is what moves through the queue.
type entry struct {
	category string
	frames   []frame // without an outcome
	bytes    int64   // of frames
	charge   int64
	since    time.Time
	sub      *submission // who waits; nil when nobody does
	ack      scribev1.AckLevel
	mem      *buffers.Buffer // the frames' bytes, those that have an outcome included
	// unsure: an attempt ended with an unknown outcome, so the frames may be stored.
	unsure bool
	// abandoned: whoever waited has given up while it was on its way. It is not sent again.
	abandoned bool
	// alone: a request that held it was refused as a whole, so it is sent alone to find out whether it was the cause.
	alone bool
}

// lane is the queue of one category. It exists while bytes is not 0.
type lane struct {
	name    string
	entries []*entry
	bytes   int64 // charged for entries in it, on their way, or about to be added
	// busy: entries taken from it are on their way, and what is behind them waits.
	busy bool
	// failures and notBefore hold a category back that the upstream refuses.
	failures  int
	notBefore time.Time
}

// batch is a request to the upstream: whole entries, each category's in order.
type batch struct {
	entries []*entry
	lanes   []*lane
	ack     scribev1.AckLevel
	bytes   int64
}

// queue decides what is taken in and what is sent when. It is a plain state machine: events and times go in, batches come out. It
// does no I/O, starts nothing, and reads no clock.
type queue struct {
	cfg Config

	used  int64 // bytes charged
	lanes map[string]*lane
	// turn holds every lane with entries that is not busy, in the order in which they get their turn.
	turn    []*lane
	running int
	closing bool
	// failures and notBefore hold everything back while the upstream is away.
	failures  int
	notBefore time.Time
}

// frameOverhead is what bookkeeping is charged for a frame, entryOverhead for an entry, in bytes.
const (
	frameOverhead = 100
	entryOverhead = 300
)

func chargeOf(frames int, bytes int64) int64 {
	return bytes + int64(frames)*frameOverhead + entryOverhead
}

// room reports whether a category may bring that much now, and whether it ever may.
func (q *queue) room(category string, charge int64) (now, ever bool) {
	held := int64(0)
	if l := q.lanes[category]; l != nil {
		held = l.bytes
	}
	free := q.cfg.MemoryBytes - q.used - charge
	alone := int64(float64(q.cfg.MemoryBytes) * q.cfg.Share / (1 + q.cfg.Share))
	// A category may hold a multiple of what is free afterwards. So the memory is never full, and a category that comes later
	// finds room however much the others bring.
	return free >= 0 && float64(held+charge) <= q.cfg.Share*float64(free), charge <= alone
}

// reserve charges what an entry will take. add or release follows.
func (q *queue) reserve(e *entry) {
	q.used += e.charge
	l := q.lanes[e.category]
	if l == nil {
		l = &lane{name: e.category}
		q.lanes[e.category] = l
	}
	l.bytes += e.charge
}

// release gives back what an entry takes, and forgets the lane when nothing is left of it.
func (q *queue) release(e *entry) {
	q.used -= e.charge
	if l := q.lanes[e.category]; l != nil {
		if l.bytes -= e.charge; l.bytes == 0 {
			delete(q.lanes, l.name)
		}
	}
}

// add puts an entry into its lane.
func (q *queue) add(e *entry) {
	l := q.lanes[e.category]
	l.entries = append(l.entries, e)
	if len(l.entries) == 1 && !l.busy {
		q.turn = append(q.turn, l)
	}
}

// withdraw takes an entry out that nobody waits for any more, and reports whether it was there and not on its way.
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
	if len(l.entries) == 0 && !l.busy {
		q.turn = slices.DeleteFunc(q.turn, func(x *lane) bool { return x == l })
	}
	q.release(e)
	return true
}

// next returns the next batch to send now; nil when there is none.
func (q *queue) next(now time.Time) *batch {
	if q.running >= q.cfg.MaxInFlight || now.Before(q.notBefore) {
		return nil
	}
	first := slices.IndexFunc(q.turn, func(l *lane) bool { return q.due(l, now) })
	if first < 0 {
		return nil
	}
	b := &batch{ack: q.turn[first].entries[0].ack}
	// Lanes that are due get a share each, in turn; lanes of another level wait for another batch. A lane that only lingers may
	// come along.
	quantum := max(q.cfg.BatchBytes/max(len(q.turn), 1), minQuantum)
	order := slices.Concat(q.turn[first:], q.turn[:first])
	q.turn = q.turn[:0:0]
	for _, l := range order {
		if b.full(q.cfg.BatchBytes) || l.entries[0].ack != b.ack || now.Before(l.notBefore) || !q.take(b, l, quantum) {
			q.turn = append(q.turn, l)
		}
	}
	q.running++
	return b
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
		if full || e.ack != b.ack || e.alone && n+len(b.entries) > 0 {
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
	b.entries = append(b.entries, l.entries[:n]...)
	b.lanes = append(b.lanes, l)
	b.bytes += size
	l.entries = slices.Delete(l.entries, 0, n)
	l.busy = true
	return true
}

// due reports whether a lane's first entry should be sent now.
func (q *queue) due(l *lane, now time.Time) bool {
	if now.Before(l.notBefore) {
		return false
	}
	e := l.entries[0]
	return q.closing || e.sub != nil || l.failures > 0 || l.bytes >= int64(q.cfg.BatchBytes) || !now.Before(e.since.Add(q.cfg.Linger))
}

// wake is when next may have a batch if nothing else happens before; zero when only an event can bring one.
func (q *queue) wake(now time.Time) time.Time {
	if q.running >= q.cfg.MaxInFlight {
		return time.Time{}
	}
	var at time.Time
	for _, l := range q.turn {
		t := l.notBefore
		if e := l.entries[0]; !q.due(l, maxTime(now, t)) {
			t = maxTime(t, e.since.Add(q.cfg.Linger))
		}
		if t = maxTime(t, q.notBefore); at.IsZero() || t.Before(at) {
			at = maxTime(t, now)
		}
		if at.Equal(now) {
			break
		}
	}
	return at
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// settled is the event that a batch is answered: entries that still have frames go back to the front of their lanes, in order;
// the others are released and returned. pause, when above 0, holds back everything, held the categories in it.
func (q *queue) settled(now time.Time, b *batch, pause time.Duration, held map[*lane]time.Duration) (done []*entry) {
	q.running--
	q.notBefore = now.Add(pause)
	back := make(map[string][]*entry, len(b.lanes))
	for _, e := range b.entries {
		if len(e.frames) > 0 {
			back[e.category] = append(back[e.category], e)
		} else {
			done = append(done, e)
		}
	}
	for _, l := range b.lanes {
		l.busy = false
		l.entries = append(back[l.name], l.entries...)
		if d, ok := held[l]; ok {
			l.notBefore = now.Add(d)
		} else {
			l.failures, l.notBefore = 0, time.Time{}
		}
		if len(l.entries) > 0 {
			q.turn = append(q.turn, l)
		}
	}
	for _, e := range done {
		q.release(e)
	}
	return done
}
