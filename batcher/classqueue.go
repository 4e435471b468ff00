package batcher

import (
	"slices"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Limits of one flush in addition to its size. They keep a transaction within the limits of package metalog, and a footer within
// those of package layout, even if every run of sequences is partly stored and split in two. They also keep a pointer within the
// limits of package pointer, where a run takes at most 33 bytes.
const (
	maxFlushPayloads = 20_000
	maxFlushRuns     = 30_000
	maxPayloadRuns   = 1024
	// maxRawFactor bounds the raw bytes of a flush whose payloads compress very well, in multiples of FlushBytes.
	maxRawFactor = 8
	// maxTurns bounds the turns that fill a flush: in its turn, a category may add at least 1/maxTurns of the flush. Fresh
	// categories may add no more.
	maxTurns = 64
	// What lingers of more than asideBytes, before compression, or more than asidePayloads, makes a flush that takes notably longer than a
	// small one.
	asideBytes    = 1 << 20
	asidePayloads = 128
)

// flushVolume has the quantities that limit a flush, for a flush or for the pending payloads.
type flushVolume struct {
	size     int64 // stored bytes of compressed payloads, and raw bytes of others
	lingered int64 // the latter where nobody waits, of which half counts towards Config.FlushBytes: they'll hardly be stored in more
	raw      int64
	payloads int
	runs     int
}

func (v *flushVolume) isFull(cfg *Config) bool {
	return v.size-v.lingered/2 >= cfg.FlushBytes || v.raw >= maxRawFactor*cfg.FlushBytes || v.payloads >= maxFlushPayloads || v.runs >= maxFlushRuns
}

func (v *flushVolume) countPayload(pl *payload, sign int64) {
	v.size += sign * pl.flushSize()
	if pl.stored < 0 && pl.lingered > 0 && pl.waiters == 0 {
		v.lingered += sign * int64(pl.bytes)
	}
	v.raw += sign * int64(pl.bytes)
	v.payloads += int(sign)
	v.runs += int(sign) * pl.runs
}

// classQueue has the pending frames of one retention class and its flushes in flight. Classes share the memory and the
// compressors, but do not wait for each other.
type classQueue struct {
	class uint32
	held  int64 // bytes charged for its categories

	// fresh and turn list the categories with frames that flushes may take, in the order of their turns. A category that had none
	// before enters fresh, which is served before the categories that want more than their share. So a category with little
	// traffic does not wait for one with heavy traffic.
	fresh, turn []*categoryAccount
	// pending is the volume that flushes may take. waiters counts its awaited spans, lingered those for which only a request waits. oldest
	// is the arrival of its first frame.
	pending  flushVolume
	waiters  int
	lingered int
	oldest   time.Time

	// awaited is the part of pending in batches that somebody waits for, which awaitedBatches lists.
	awaited        flushVolume
	awaitedBatches []*logBatch

	running        int            // flushes that are being written, without urgent ones
	large          int            // those of them that what lingered makes large
	urgent         int            // flushes of awaited batches beside these
	lastCut        time.Time      // of a flush that is not urgent; zero before the first
	lastAwaited    time.Time      // of a flush with awaited batches; zero before the first
	runningFlushes []runningFlush // all that are being written, in the order of their start
}

// runningFlush is a flush and the time it was cut.
type runningFlush struct {
	flush *flush
	at    time.Time
}

// categoryAccount accounts for the memory and the turns of one category.
type categoryAccount struct {
	category uint32
	// queue is the class queue of the category's frames. It follows the category's retention, but changes only when no frames are
	// pending.
	queue *classQueue
	held  int64 // bytes charged, see payload.memoryCharge
	// pending counts the batches with frames that no flush has taken. batches are those of them that flushes may take, in turn.
	pending int
	batches []*logBatch
	credit  int64        // bytes that it may add to a flush
	listed  bool         // in fresh or turn of its queue
	one     [1]*logBatch // the memory of batches while it has one element

	// Of the request that is being admitted: the bytes that it asks for, the category's priority, and the error if it is refused.
	asked    int64
	refusal  error
	priority scribev1.Priority
	// givesWay: it is refused for the sake of categories of higher priority.
	givesWay bool
}

// listBatch makes a batch of the category available to flushes.
func (fl *classQueue) listBatch(t *categoryAccount, g *logBatch) {
	t.batches = append(t.batches, g)
	if !t.listed {
		t.listed, t.credit = true, 0
		fl.fresh = append(fl.fresh, t)
	}
}

// countPayload adds a payload to the pending volume, or removes it if sign is -1.
func (fl *classQueue) countPayload(pl *payload, sign int) {
	fl.pending.countPayload(pl, int64(sign))
	if pl.batch.awaited {
		fl.awaited.countPayload(pl, int64(sign))
	}
	fl.waiters += sign * pl.waiters
	fl.lingered += sign * pl.lingered
	if sign > 0 {
		fl.oldest = earlierTime(fl.oldest, pl.since)
	}
}

// countBatch adds the payloads of a batch to the pending volume, or removes them if sign is -1.
func (fl *classQueue) countBatch(g *logBatch, sign int) {
	for _, pl := range g.payloads {
		fl.countPayload(pl, sign)
	}
}

// listAwaited notes that somebody waits for a batch, which flushes may take.
func (fl *classQueue) listAwaited(g *logBatch) {
	fl.awaitedBatches = append(fl.awaitedBatches, g)
	for _, pl := range g.payloads {
		fl.awaited.countPayload(pl, 1)
	}
}

// detachAwaited takes the awaited batches out of their categories' turns, and returns them.
func (fl *classQueue) detachAwaited() []*logBatch {
	batches := fl.awaitedBatches
	fl.awaitedBatches = nil
	for _, g := range batches {
		t := g.account
		t.batches = slices.DeleteFunc(t.batches, func(x *logBatch) bool { return x == g })
		t.listed = len(t.batches) > 0
	}
	unlisted := func(t *categoryAccount) bool { return !t.listed }
	fl.fresh, fl.turn = slices.DeleteFunc(fl.fresh, unlisted), slices.DeleteFunc(fl.turn, unlisted)
	return batches
}

// lingersMuch reports whether what nobody waits for makes a flush large.
func (fl *classQueue) lingersMuch() bool {
	return fl.pending.raw-fl.awaited.raw > asideBytes || fl.pending.payloads-fl.awaited.payloads > asidePayloads
}

// isMixed reports whether awaited batches stay out of flushes of what lingered: there is much of that, and they fit a flush of their own.
func (fl *classQueue) isMixed(cfg *Config) bool {
	return fl.awaited.payloads > 0 && !fl.awaited.isFull(cfg) && fl.lingersMuch()
}

// refreshOldest recomputes oldest, after payloads were removed.
func (fl *classQueue) refreshOldest() {
	fl.oldest = time.Time{}
	if fl.pending.payloads == 0 {
		return
	}
	for _, list := range [][]*categoryAccount{fl.fresh, fl.turn} {
		for _, t := range list {
			for _, g := range t.batches {
				fl.oldest = earlierTime(fl.oldest, g.payloads[0].since)
			}
		}
	}
}

// nextTurn removes the category whose turn it is from its list, and gives it credit. Fresh categories come first, but get at most
// half of a flush while others wait.
func (fl *classQueue) nextTurn(f *flush, cfg *Config, quantum int64) *categoryAccount {
	list := &fl.turn
	if len(fl.fresh) > 0 && (len(fl.turn) == 0 || f.size < cfg.FlushBytes/2) {
		list, quantum = &fl.fresh, min(quantum, cfg.FlushBytes/maxTurns)
	}
	if len(*list) == 0 {
		return nil
	}
	t := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	t.credit += max(quantum, 1)
	return t
}

// longestRunning returns how long the oldest running flush has been running.
func (fl *classQueue) longestRunning(now time.Time) time.Duration {
	if len(fl.runningFlushes) == 0 {
		return 0
	}
	return now.Sub(fl.runningFlushes[0].at)
}

// takeBatches moves pending payloads to a flush. It reports whether what lingered makes the flush large.
//
// A batch has all pending frames of its log, so whichever batches a flush takes, it keeps the order of each log.
func (a *accumulator) takeBatches(f *flush, fl *classQueue) (large bool) {
	mixed := fl.isMixed(&a.cfg) && !a.closing
	large = fl.lingersMuch() && (mixed || fl.awaited.payloads == 0) && !f.urgent
	var apart []*logBatch
	if mixed {
		apart = fl.detachAwaited()
	}
	switch {
	case !mixed:
		if fl.awaited.payloads > 0 {
			fl.lastAwaited = f.cutAt
		}
		a.takePending(f, fl)
	case f.urgent:
		fl.lastAwaited = f.cutAt
		for _, g := range apart {
			a.takeBatch(f, g)
		}
	default:
		for _, g := range apart {
			fl.countBatch(g, -1)
		}
		a.takePending(f, fl)
		for _, g := range apart {
			fl.listBatch(g.account, g)
			fl.countBatch(g, 1)
		}
		fl.awaitedBatches = apart
	}
	fl.awaitedBatches = slices.DeleteFunc(fl.awaitedBatches, func(g *logBatch) bool { return a.batches[g.shard] != g })
	fl.refreshOldest()
	return large
}

// takePending moves pending payloads to a flush: all of them, or if they exceed a flush, fair shares of the categories.
func (a *accumulator) takePending(f *flush, fl *classQueue) {
	if !fl.pending.isFull(&a.cfg) {
		for _, list := range [][]*categoryAccount{fl.fresh, fl.turn} {
			for _, t := range list {
				for _, g := range t.batches {
					a.takeBatch(f, g)
				}
				clear(t.batches)
				t.batches, t.listed = t.one[:0], false
			}
		}
		clear(fl.fresh)
		clear(fl.turn)
		fl.fresh, fl.turn = fl.fresh[:0], fl.turn[:0]
	} else {
		a.takeFairShares(f, fl)
	}
}

// takeBatch moves a whole batch to a flush.
func (a *accumulator) takeBatch(f *flush, g *logBatch) {
	for _, pl := range g.payloads {
		a.movePayload(f, pl)
	}
	g.open = nil
	f.batches = append(f.batches, g)
	a.dropBatch(g)
}

// takeFairShares fills a flush with fair shares of the categories.
func (a *accumulator) takeFairShares(f *flush, fl *classQueue) {
	quantum := a.cfg.FlushBytes / int64(min(len(fl.fresh)+len(fl.turn), maxTurns))
	var taken []*logBatch
	for !f.isFull(&a.cfg) {
		t := fl.nextTurn(f, &a.cfg, quantum)
		if t == nil {
			break
		}
		for t.credit > 0 && len(t.batches) > 0 && !f.isFull(&a.cfg) {
			g := t.batches[0]
			pl := g.payloads[0]
			t.credit -= pl.flushSize()
			if g.taken == nil {
				g.taken = newLogBatch(g.logTarget, t)
				g.taken.awaited = g.awaited
				f.batches = append(f.batches, g.taken)
				taken = append(taken, g)
			}
			pl.batch = g.taken
			g.taken.payloads = append(g.taken.payloads, pl)
			a.movePayload(f, pl)
			g.payloads = g.payloads[1:]
			if pl == g.open {
				g.open = nil
			}
			t.batches = t.batches[1:]
			if len(g.payloads) > 0 {
				t.batches = append(t.batches, g)
			} else {
				a.dropBatch(g)
			}
		}
		if len(t.batches) > 0 {
			fl.turn = append(fl.turn, t)
		} else {
			t.batches, t.listed = nil, false
		}
	}
	for _, g := range taken {
		g.taken = nil
	}
}

// movePayload accounts for a payload that moves from its class queue to a flush.
func (a *accumulator) movePayload(f *flush, pl *payload) {
	f.queue.countPayload(pl, -1)
	f.countPayload(pl, 1)
	f.oldest = earlierTime(f.oldest, pl.since)
	b := pl.block
	if b == nil {
		f.small = append(f.small, pl)
		return
	}
	b.flush = f
	f.blocks = append(f.blocks, b)
	if pl.stored < 0 {
		f.uncompressed++
		a.actions.urge = append(a.actions.urge, b)
	}
}

// dropBatch removes a batch without pending payloads.
func (a *accumulator) dropBatch(g *logBatch) {
	delete(a.batches, g.shard)
	g.account.pending--
}

// stallShard keeps a log's frames out of flushes until resumeShards, since earlier frames of the log are blocked. The pending
// ones are compressed, so that they do not retain chunks of memory that they share with other frames.
func (a *accumulator) stallShard(s record.ShardID) {
	if _, ok := a.stalled[s]; ok {
		return
	}
	a.stalled[s] = struct{}{}
	g := a.batches[s]
	if g == nil {
		return
	}
	g.stalled = true
	t := g.account
	t.queue.countBatch(g, -1)
	t.queue.awaitedBatches = slices.DeleteFunc(t.queue.awaitedBatches, func(x *logBatch) bool { return x == g })
	t.batches = slices.DeleteFunc(t.batches, func(x *logBatch) bool { return x == g })
	if len(t.batches) == 0 {
		t.listed = false
		isListed := func(x *categoryAccount) bool { return x == t }
		t.queue.fresh, t.queue.turn = slices.DeleteFunc(t.queue.fresh, isListed), slices.DeleteFunc(t.queue.turn, isListed)
	}
	if g.open != nil {
		a.closePayload(g.open)
	}
	t.queue.refreshOldest()
}

// resumeShards ends the stall of shards.
func (a *accumulator) resumeShards(now time.Time, shards []record.ShardID) {
	for _, s := range shards {
		delete(a.stalled, s)
		g := a.batches[s]
		if g == nil || !g.stalled {
			continue
		}
		g.stalled = false
		fl := g.account.queue
		fl.listBatch(g.account, g)
		fl.countBatch(g, 1)
		if g.awaited {
			fl.awaitedBatches = append(fl.awaitedBatches, g)
		}
	}
	if len(shards) > 0 {
		a.cutDue(now)
	}
}

// compressStalled queues frames of stalled logs for compression when they have waited for Config.MaxAge: raw frames retain more
// memory than their own.
func (a *accumulator) compressStalled(now time.Time) {
	if len(a.stalled) == 0 {
		return
	}
	for s := range a.stalled {
		if g := a.batches[s]; g != nil && g.open != nil && !now.Before(g.open.since.Add(a.cfg.MaxAge)) {
			a.closePayload(g.open)
		}
	}
}
