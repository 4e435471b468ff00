package scribed

import (
	"cmp"
	"slices"
	"time"

	"scribe/internal/base/inflight"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// categoryFlights are the requests in flight of a category's live traffic, or of its backlog.
//
// Several are in flight if the upstream keeps their order, within a window. Those of a stream (a producer's frames of one shard)
// follow one another: each begins where the one before it ends, and says so (WriteRequest.follows). What can't say so waits until
// all are answered: a repeated frame, a gap, a new epoch, a frame without sequences beside others without. After a failure, too,
// nothing is sent until all are answered: then what failed goes first.
type categoryFlights struct {
	window inflight.Window
	// level is that of the last answer: an upstream may keep the order at one and not at another.
	level   scribev1.AckLevel
	flights []*categoryFlight // in the order in which they were sent
	// failed: one of them had frames that are to be sent again.
	failed bool
	// cut: the frames that come next may not follow those in flight. Of the backlog only, where that is known late.
	cut bool
	// ends are the ends of the streams in flight.
	ends map[streamKey]*streamEnd
}

// categoryFlight is a category's part of a request.
type categoryFlight struct {
	entries []*queueEntry
	bytes   int64
	level   scribev1.AckLevel
	// used: it makes use of the window. alone, loose: it has an entry that is to be alone, or frames without sequences.
	used, alone, loose bool
	// follows: some of its frames follow others, of earlier requests.
	follows bool
	layouts layoutTags
	// late: when it was answered, another one had failed. What follows that one is refused for it.
	late    bool
	streams []streamKey
}

// streamKey names a stream of a category.
type streamKey struct {
	producer uint64
	shard    uint32
}

// streamEnd is the end of what is in flight of a stream.
type streamEnd struct {
	epoch     uint32
	placement uint32 // the tag of the layout that placed it, or severalTags
	next      uint64
	flights   int
}

// frameSequences are the sequences of a frame, and whose they are.
type frameSequences struct {
	stream      streamKey
	epoch       uint32
	placement   uint32 // the tag of the layout by which their producer placed them
	first, next uint64
}

func sequencesOf(h *record.Header) frameSequences {
	return frameSequences{
		stream: streamKey{h.Producer, h.Shard}, epoch: h.Epoch, placement: h.Placement, first: h.FirstSequence, next: h.NextSequence(),
	}
}

// isBusy reports whether anything is in flight.
func (c *categoryFlights) isBusy() bool { return len(c.flights) > 0 }

// entries returns the entries in flight.
func (c *categoryFlights) entries() (all []*queueEntry) {
	for _, fl := range c.flights {
		all = append(all, fl.entries...)
	}
	return all
}

// mayFollow reports whether a request of a level may be sent while others are in flight.
func (c *categoryFlights) mayFollow(level scribev1.AckLevel) bool {
	last := c.flights[len(c.flights)-1]
	return !c.window.IsClosed() && !c.failed && !c.cut && !last.alone && level == last.level && level == c.level
}

// followCheck finds out which frames may share a request, and which of them one that is sent while others are in flight.
type followCheck struct {
	flights *categoryFlights
	ends    map[streamKey]streamEnd // of streams in flight, with the frames of the request
	loose   bool                    // frames without sequences are in flight
	layouts layoutCheck
}

func (c *categoryFlights) newFollowCheck() followCheck {
	loose := func(fl *categoryFlight) bool { return fl.loose }
	return followCheck{flights: c, loose: slices.ContainsFunc(c.flights, loose), layouts: c.newLayoutCheck()}
}

// countAllowed returns how many of the frames may join the request, after the entries that have: the first frame that may not, and those
// after it, have to wait.
func (k *followCheck) countAllowed(joined []*queueEntry, frames []queuedFrame) int {
	busy := k.flights.isBusy()
	for i := range frames {
		if busy && !k.mayFollow(&frames[i]) || !k.layouts.mayJoin(joined, frames, i) {
			return i
		}
	}
	return len(frames)
}

// mayFollow reports whether the flights allow a frame in a request beside them.
func (k *followCheck) mayFollow(f *queuedFrame) bool {
	if !f.sequenced {
		return !k.loose
	}
	end, ok := k.ends[f.sequences.stream]
	if !ok {
		other := k.flights.ends[f.sequences.stream]
		if other == nil {
			return true // it may begin anywhere
		}
		end = *other
	}
	if end.epoch != f.sequences.epoch || end.next != f.sequences.first {
		return false
	}
	if k.ends == nil {
		k.ends = make(map[streamKey]streamEnd)
	}
	k.ends[f.sequences.stream] = streamEnd{epoch: end.epoch, next: f.sequences.next}
	return true
}

// beginFlight notes that entries are sent, and marks their frames that follow others.
func (c *categoryFlights) beginFlight(entries []*queueEntry, level scribev1.AckLevel) *categoryFlight {
	fl := &categoryFlight{entries: entries, level: level}
	own := make(map[streamKey]struct{}, 1)
	for _, e := range entries {
		fl.bytes += e.bytes
		fl.alone = fl.alone || e.alone
		for i := range e.frames {
			f := &e.frames[i]
			if !f.sequenced {
				fl.loose = true
				continue
			}
			key := f.sequences.stream
			end := c.ends[key]
			if end == nil {
				end = &streamEnd{placement: f.sequences.placement}
				if c.ends == nil {
					c.ends = make(map[streamKey]*streamEnd)
				}
				c.ends[key] = end
			}
			if _, ok := own[key]; !ok {
				own[key] = struct{}{}
				fl.streams = append(fl.streams, key)
				end.flights++
			}
			f.behind = end.flights > 1
			fl.follows = fl.follows || f.behind
			end.epoch, end.next, end.placement = f.sequences.epoch, f.sequences.next, joinTags(end.placement, f.sequences.placement)
			fl.layouts.addTag(f.sequences.placement)
		}
	}
	fl.used = c.window.NoteSent(fl.bytes)
	c.flights = append(c.flights, fl)
	return fl
}

// noteOutcome notes the answer of a request, before end: after a failure, nothing is sent while dead letters are written.
func (c *categoryFlights) noteOutcome(fl *categoryFlight) {
	fl.late = c.failed
	c.failed = c.failed || slices.ContainsFunc(fl.entries, func(e *queueEntry) bool { return len(e.frames) > 0 })
}

// endFlight ends a request that was answered. left are its entries with frames that are to be sent again.
func (c *categoryFlights) endFlight(now time.Time, b *upstreamBatch, fl *categoryFlight, left []*queueEntry) {
	c.flights = slices.DeleteFunc(c.flights, func(other *categoryFlight) bool { return other == fl })
	for _, key := range fl.streams {
		end := c.ends[key]
		if end.flights--; end.flights == 0 {
			delete(c.ends, key)
		}
	}
	if len(left) == 0 && b.answered {
		c.level = fl.level
		c.window.NoteAnswer(now, fl.bytes, fl.used, b.took, b.ordered)
	} else {
		outOfOrder := fl.follows && !fl.late && slices.ContainsFunc(left, (*queueEntry).isOutOfOrder)
		c.window.NoteFailure(now, fl.bytes, outOfOrder)
	}
	if !c.isBusy() {
		c.failed, c.cut = false, false
	}
}

// isOutOfOrder reports whether a frame came out of order in the last attempt.
func (e *queueEntry) isOutOfOrder() bool {
	return slices.ContainsFunc(e.frames, func(f queuedFrame) bool { return f.refusal.GetReason() == scribev1.Reason_REASON_OUT_OF_ORDER })
}

// flightOf returns the part of a category in the request; nil if the request is direct.
func (b *upstreamBatch) flightOf(l *categoryQueue) *categoryFlight {
	if i := slices.Index(b.queues, l); i >= 0 && i < len(b.flights) {
		return b.flights[i]
	}
	return nil
}

// isConsequence reports whether the frames of an entry that are to be sent again wait for others alone, which they follow.
func (b *upstreamBatch) isConsequence(l *categoryQueue, e *queueEntry) bool {
	fl := b.flightOf(l)
	ownFault := func(f queuedFrame) bool { return f.refusal.GetReason() != scribev1.Reason_REASON_OUT_OF_ORDER }
	return fl != nil && fl.follows && !slices.ContainsFunc(e.frames, ownFault)
}

// compareEntries compares entries by their places in their queue. Parts of one entry have its number.
func compareEntries(a, b *queueEntry) int {
	if a.number != b.number || len(a.frames) == 0 || len(b.frames) == 0 {
		return cmp.Compare(a.number, b.number)
	}
	return cmp.Compare(a.frames[0].index, b.frames[0].index)
}

// returnEntry puts an entry that was in flight back to its place.
func (q *sendQueue) returnEntry(l *categoryQueue, e *queueEntry) {
	at, _ := slices.BinarySearchFunc(l.entries, e, compareEntries)
	l.entries = slices.Insert(l.entries, at, e)
	l.queued += e.bytes
	q.joinTurn(l)
}

const (
	// followingShare is the part of the memory that the frames of all requests in flight may have for a request to be sent beside others
	// of its category. The rest is for those that wait.
	followingShare = 0.5
	// maxFollowing bounds the requests in flight that follow others. It matters for requests of a few kilobytes.
	maxFollowing = 64
)

// hasSpaceToFollow reports whether another request of n bytes may be sent beside others of its categories.
func (q *sendQueue) hasSpaceToFollow(n int64) bool {
	return q.following < maxFollowing && q.sending+n <= int64(followingShare*float64(q.cfg.MemoryBytes))
}

// mayFollow reports whether the live traffic of a queue may be sent while some of it is in flight. A request that follows is worth
// its cost if it is large. Categories that are strict have an order across producers, which no upstream keeps.
func (q *sendQueue) mayFollow(l *categoryQueue) bool {
	c, e := &l.live, l.entries[0]
	if l.rule.Strict || l.failures > 0 || e.alone || !c.mayFollow(q.upstreamLevel(e)) {
		return false
	}
	worth := c.window.WorthSending(int64(q.cfg.BatchBytes))
	if l.queued < worth || c.window.Space() < max(e.bytes, worth) || !q.hasSpaceToFollow(max(e.bytes, worth)) {
		return false
	}
	check := c.newFollowCheck()
	return check.countAllowed(nil, e.frames) == len(e.frames)
}

// mayFollowFill reports whether more of the backlog may be sent while some of it is in flight, in a request of about size bytes, and
// how much of it.
func (q *sendQueue) mayFollowFill(l *categoryQueue, now time.Time, size int64) (worth int64, ok bool) {
	c := &l.backfill
	if l.claiming || !c.isBusy() || l.rule.Strict || l.failures > 0 || l.cautious || now.Before(l.notBefore) || !c.mayFollow(scribev1.AckLevel_ACK_LEVEL_COMMITTED) {
		return 0, false
	}
	if l.isOrdered() && (l.live.isBusy() || l.spilling) {
		return 0, false
	}
	worth = max(c.window.WorthSending(size), 1)
	if c.window.Space() < worth || q.unclaimedBytes(l) < worth || q.spool.Reached(l.name, l.fillUpTo()) {
		return 0, false
	}
	return worth, true
}

// unclaimedBytes returns about how many bytes of the backlog are not in flight.
func (q *sendQueue) unclaimedBytes(l *categoryQueue) int64 {
	return q.backlogOf(l).Bytes - l.backfill.window.InFlight()
}
