package scribed

import (
	"slices"
	"time"

	"scribe/internal/base/lifecycle"
	"scribe/scribed/spool"
)

// fitsMemory reports whether charge bytes of a category fit into memory now, and whether they ever could.
func (q *sendQueue) fitsMemory(l *categoryQueue, charge int64) (now, ever bool) {
	free := q.cfg.MemoryBytes - q.used - charge
	alone := int64(float64(q.cfg.MemoryBytes) * q.cfg.Share / (1 + q.cfg.Share))
	if limit := l.rule.MaxBytes; limit > 0 && !q.spooling {
		if l.bytes+charge > limit {
			return false, charge <= min(limit, alone)
		}
	}
	// A category may hold a multiple of the memory that is free afterwards. So the memory never fills up, and a category that
	// comes later finds capacity however much the others bring.
	return free >= 0 && float64(l.bytes+charge) <= q.cfg.Share*float64(free), charge <= alone
}

// spoolExcess reports by how many bytes a category exceeds its limits if n more bytes come that are, or may have to go, in the
// spool; 0 or less = there is capacity. It applies the rule of fitsMemory to the spool, and the category's own limit.
// Acknowledged frames in memory only are counted as if they were in the spool, so that there is capacity when they must leave the
// memory, and when scribed closes.
func (q *sendQueue) spoolExcess(l *categoryQueue, n int64) (over int64) {
	its, all := q.spool.Held(l.name)
	held := spoolCharge(its) + l.owed + n
	free := q.capacity - spoolCharge(all) - q.owed - n
	// held-x <= share*(free+x)
	over = int64((float64(held) - q.cfg.Share*float64(free)) / (1 + q.cfg.Share))
	if free < 0 {
		over = max(over, -free)
	}
	if limit := l.rule.MaxBytes; limit > 0 {
		over = max(over, held-limit)
	}
	return over
}

// spoolCharge is the charge of records in the spool.
func spoolCharge(a spool.Amount) int64 { return a.Bytes + a.Records*recordOverhead }

// filesFull reports whether the spool's files may have no capacity for n more bytes, whatever the account says: they keep
// delivered records until their space is reclaimed, and are not filled to the last byte.
func (q *sendQueue) filesFull(n int64, at time.Time) bool {
	return at.Before(q.diskFullTill) || q.diskUsed+(q.owed+n)*3/2 > q.cfg.Spool.MaxBytes-spareBytes(q.cfg.Spool)
}

// spareBytes is the part of a spool's files that is not counted on: segments that are created ahead, or not filled.
func spareBytes(c *spool.Config) int64 { return min(2*c.SegmentBytes, c.MaxBytes/4) }

// everFitsSpool reports whether n bytes of a category could ever fit into the spool.
func (q *sendQueue) everFitsSpool(l *categoryQueue, n int64) bool {
	if limit := l.rule.MaxBytes; limit > 0 && n > limit {
		return false
	}
	return float64(n) <= float64(q.capacity)*q.cfg.Share/(1+q.cfg.Share)
}

// entryDestination is where an entry goes.
type entryDestination uint8

const (
	inMemory entryDestination = 1 // memory is charged
	onDisk   entryDestination = 2 // to the spool only
	nowhere  entryDestination = 3 // no capacity now; the category's rule decides
	tooLarge entryDestination = 4 // never fits
)

// chooseDestination decides where a new entry goes, and charges its memory. An ordered category with backlog continues on disk,
// except for frames whose caller waits for the upstream: those wait in memory for their turn.
func (q *sendQueue) chooseDestination(l *categoryQueue, e *queueEntry, at time.Time) entryDestination {
	e.charge = chargeOf(len(e.frames), e.bytes)
	if len(l.waiters) > 0 && l.waiters[0] != e {
		return nowhere // others came first
	}
	now, ever := q.fitsMemory(l, e.charge)
	if !q.spooling || e.ack == ackCommitted {
		switch {
		case now:
			q.reserveMemory(e)
			return inMemory
		case ever:
			return nowhere
		}
		return tooLarge
	}
	disk := q.spoolExcess(l, e.onDisk()) <= 0 && !q.filesFull(e.onDisk(), at)
	switch {
	case disk && now && (!l.isOrdered() || !q.hasBacklog(l)):
		q.reserveMemory(e)
		return inMemory
	case disk:
		return onDisk
	case q.everFitsSpool(l, e.onDisk()):
		return nowhere
	}
	return tooLarge
}

// takeEntries removes entries of a queue from memory that have no waiting caller and are not in the spool, from the oldest to the
// first that is wanted, and returns them. freed is the charge of those before e.
func (q *sendQueue) takeEntries(l *categoryQueue, unwanted func(e *queueEntry, freed int64) bool) (gone []*queueEntry) {
	freed := int64(0)
	for i := 0; i < len(l.entries) && unwanted(l.entries[i], freed); {
		e := l.entries[i]
		if !e.canSpill() || e.isSpooled() {
			i++
			continue
		}
		freed += e.charge
		gone = append(gone, e)
		q.counts.memory = q.counts.memory.Minus(e.amount())
		q.removeEntry(e) // the next entry is at i now
	}
	return gone
}

// blockCall registers a call that waits for capacity in a queue, and returns false when too many calls or bytes wait already.
func (q *sendQueue) blockCall(l *categoryQueue, e *queueEntry) bool {
	if e.ready != nil {
		return true
	}
	waiting := int64(0)
	for _, w := range l.waiters {
		waiting += w.bytes
	}
	if q.blockedCalls >= q.cfg.MaxBlocked || q.blockedBytes+e.bytes > q.cfg.MemoryBytes/2 || waiting+e.bytes > q.cfg.MemoryBytes/4 {
		return false
	}
	e.ready = lifecycle.NewWakeChannel()
	l.waiters = append(l.waiters, e)
	q.blocked[l] = struct{}{}
	q.blockedCalls++
	q.blockedBytes += e.bytes
	return true
}

func (q *sendQueue) unblockCall(l *categoryQueue, e *queueEntry) {
	if e.ready == nil {
		return
	}
	l.waiters = slices.DeleteFunc(l.waiters, func(w *queueEntry) bool { return w == e })
	q.blockedCalls--
	q.blockedBytes -= e.bytes
	e.ready = nil
	q.freed = true // the next call may now have capacity
	if len(l.waiters) == 0 {
		delete(q.blocked, l)
	}
	q.forgetIdle(l)
}

// wakeBlocked wakes the first waiting call of each queue if capacity may have been freed.
func (q *sendQueue) wakeBlocked() {
	if !q.freed {
		return
	}
	q.freed = false
	for l := range q.blocked {
		l.waiters[0].ready.WakeUp()
	}
}
