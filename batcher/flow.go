package batcher

import (
	"time"

	"scribe/internal/format/record"
)

// Limits of one flush beside its size. They keep a transaction within the limits of package metalog, a footer within those of
// package layout even if every run of sequences is stored partly and cut in two, and a pointer within those of package pointer: a
// run takes 33 bytes at most there.
const (
	maxFlushPayloads = 20_000
	maxFlushRuns     = 30_000
	maxPayloadRuns   = 1024
	// maxRawFactor bounds the raw bytes of a flush whose payloads compress very well, in multiples of FlushBytes.
	maxRawFactor = 8
	// maxTurns is how many turns fill a flush at most: a category puts in at least that share of it. It is what fresh ones get.
	maxTurns = 64
)

// volume is what limits a flush, of a flush or of what waits for one.
type volume struct {
	size     int64 // what counts towards Config.FlushBytes
	raw      int64
	payloads int
	runs     int
}

func (v *volume) full(cfg *Config) bool {
	return v.size >= cfg.FlushBytes || v.raw >= maxRawFactor*cfg.FlushBytes || v.payloads >= maxFlushPayloads || v.runs >= maxFlushRuns
}

func (v *volume) plus(pl *payload, sign int64) {
	v.size += sign * pl.size()
	v.raw += sign * int64(pl.bytes)
	v.payloads += int(sign)
	v.runs += int(sign) * pl.runs
}

// flow is what is on its way of one retention class. Flows share the memory and the compressors, and wait for each other in nothing.
type flow struct {
	class uint32
	held  int64 // bytes charged for its categories

	// fresh and turn hold the categories with frames that may be taken, in the order of their turns. One that had none before comes
	// to fresh: it is served before those that want more than their share. So a category with little traffic does not wait behind
	// one with a backlog.
	fresh, turn []*tenant
	// pending is what may be taken, waiters how many pieces of it have someone who waits, oldest when the first frame of it came.
	pending volume
	waiters int
	oldest  time.Time

	running int       // flushes that are being written
	lastCut time.Time // zero before the first
	started []started // of those that are running, in order
}

// started is when a flush was.
type started struct {
	flush *flush
	at    time.Time
}

// tenant is a category that holds memory, or is about to.
type tenant struct {
	category uint32
	// home is the flow of the category's frames. It changes with the category's retention, once nothing is pending.
	home *flow
	held int64 // bytes charged, see payload.charge
	// pending counts the groups with frames that no flush has taken, groups are those that may be taken, in turn.
	pending int
	groups  []*group
	credit  int64     // bytes that it may put into a flush
	listed  bool      // in fresh or turn of its home
	one     [1]*group // the memory of groups while there is one

	// Of the request that is being admitted: what it brings, and why it may not.
	asked   int64
	refusal error
}

// list makes a category's frames ones that may be taken.
func (fl *flow) list(t *tenant, g *group) {
	t.groups = append(t.groups, g)
	if !t.listed {
		t.listed, t.credit = true, 0
		fl.fresh = append(fl.fresh, t)
	}
}

// count adds a payload to what may be taken, or takes it away.
func (fl *flow) count(pl *payload, sign int) {
	fl.pending.plus(pl, int64(sign))
	fl.waiters += sign * pl.waiters
	if sign > 0 && (fl.oldest.IsZero() || pl.since.Before(fl.oldest)) {
		fl.oldest = pl.since
	}
}

// look finds the oldest frame anew, after some were taken.
func (fl *flow) look() {
	fl.oldest = time.Time{}
	if fl.pending.payloads == 0 {
		return
	}
	for _, list := range [][]*tenant{fl.fresh, fl.turn} {
		for _, t := range list {
			for _, g := range t.groups {
				if at := g.payloads[0].since; fl.oldest.IsZero() || at.Before(fl.oldest) {
					fl.oldest = at
				}
			}
		}
	}
}

// next takes a category out whose turn it is, and gives it credit. Fresh ones come first, but when others wait they get no more than
// half of a flush.
func (fl *flow) next(f *flush, cfg *Config, quantum int64) *tenant {
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

// slowest is how long the flush has been running that was started first.
func (fl *flow) slowest(now time.Time) time.Duration {
	if len(fl.started) == 0 {
		return 0
	}
	return now.Sub(fl.started[0].at)
}

// take moves what may be taken from the flow to a flush: all of it, or as much as a flush holds, in fair shares of the categories.
func (a *accumulator) take(f *flush, fl *flow) {
	if !fl.pending.full(&a.cfg) {
		for _, list := range [][]*tenant{fl.fresh, fl.turn} {
			for _, t := range list {
				for _, g := range t.groups {
					a.takeGroup(f, g)
				}
				clear(t.groups)
				t.groups, t.listed = t.one[:0], false
			}
		}
		clear(fl.fresh)
		clear(fl.turn)
		fl.fresh, fl.turn = fl.fresh[:0], fl.turn[:0]
	} else {
		a.share(f, fl)
	}
	fl.look()
}

// takeGroup gives a flush all that waits of a group, which becomes the flush's group.
func (a *accumulator) takeGroup(f *flush, g *group) {
	for _, pl := range g.payloads {
		a.moved(f, pl)
	}
	g.open = nil
	f.groups = append(f.groups, g)
	a.emptied(g)
}

// share fills a flush with fair shares.
func (a *accumulator) share(f *flush, fl *flow) {
	quantum := a.cfg.FlushBytes / int64(min(len(fl.fresh)+len(fl.turn), maxTurns))
	var taken []*group
	for !f.full(&a.cfg) {
		t := fl.next(f, &a.cfg, quantum)
		if t == nil {
			break
		}
		for t.credit > 0 && len(t.groups) > 0 && !f.full(&a.cfg) {
			g := t.groups[0]
			pl := g.payloads[0]
			t.credit -= pl.size()
			if g.into == nil {
				g.into = newGroup(g.target, t)
				f.groups = append(f.groups, g.into)
				taken = append(taken, g)
			}
			pl.group = g.into
			g.into.payloads = append(g.into.payloads, pl)
			a.moved(f, pl)
			g.payloads = g.payloads[1:]
			if pl == g.open {
				g.open = nil
			}
			t.groups = t.groups[1:]
			if len(g.payloads) > 0 {
				t.groups = append(t.groups, g)
			} else {
				a.emptied(g)
			}
		}
		if len(t.groups) > 0 {
			fl.turn = append(fl.turn, t)
		} else {
			t.groups, t.listed = nil, false
		}
	}
	for _, g := range taken {
		g.into = nil
	}
}

// moved is what a payload changes that goes from a flow to a flush.
func (a *accumulator) moved(f *flush, pl *payload) {
	f.flow.count(pl, -1)
	f.plus(pl, 1)
	if f.oldest.IsZero() || pl.since.Before(f.oldest) {
		f.oldest = pl.since
	}
	b := pl.block
	if b == nil {
		f.small = append(f.small, pl)
		return
	}
	b.flush = f
	f.blocks = append(f.blocks, b)
	if pl.stored < 0 {
		f.uncompressed++
		a.jobs.urge = append(a.jobs.urge, b)
	}
}

// emptied is what a group changes of which nothing waits any more.
func (a *accumulator) emptied(g *group) {
	delete(a.groups, g.shard)
	g.tenant.pending--
}

// stall keeps a shard's frames out of flushes until resume: what is on its way of them does not get on. What waits of them is
// compressed, so that it does not hold the memory that it shares with others.
func (a *accumulator) stall(s record.ShardID) {
	if _, ok := a.stalled[s]; ok {
		return
	}
	a.stalled[s] = struct{}{}
	g := a.groups[s]
	if g == nil {
		return
	}
	g.stalled = true
	for _, pl := range g.payloads {
		g.tenant.home.count(pl, -1)
	}
	t := g.tenant
	for i, x := range t.groups {
		if x == g {
			t.groups = append(t.groups[:i:i], t.groups[i+1:]...)
			break
		}
	}
	if len(t.groups) == 0 {
		t.home.unlist(t)
	}
	if g.open != nil {
		a.seal(g.open)
	}
	t.home.look()
}

// unlist takes a category out of the turns.
func (fl *flow) unlist(t *tenant) {
	t.listed = false
	for _, list := range []*[]*tenant{&fl.fresh, &fl.turn} {
		for i, x := range *list {
			if x == t {
				*list = append((*list)[:i:i], (*list)[i+1:]...)
				return
			}
		}
	}
}

// resume ends a stall.
func (a *accumulator) resume(now time.Time, shards []record.ShardID) {
	for _, s := range shards {
		delete(a.stalled, s)
		g := a.groups[s]
		if g == nil || !g.stalled {
			continue
		}
		g.stalled = false
		g.tenant.home.list(g.tenant, g)
		for _, pl := range g.payloads {
			g.tenant.home.count(pl, 1)
		}
	}
	if len(shards) > 0 {
		a.advance(now)
	}
}

// unpin has the frames of stalled shards compressed that have waited for Config.MaxAge: raw, they hold more memory than their own.
func (a *accumulator) unpin(now time.Time) {
	if len(a.stalled) == 0 {
		return
	}
	for s := range a.stalled {
		if g := a.groups[s]; g != nil && g.open != nil && !now.Before(g.open.since.Add(a.cfg.MaxAge)) {
			a.seal(g.open)
		}
	}
}
