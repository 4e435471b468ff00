package batcher

import (
	"sync"

	"scribe/internal/record"
	"scribe/storage/metalog"
)

// place is what the writer knows of one log.
type place struct {
	// open: epoch is the writer's, and no record but its own was appended since next was learnt.
	open  bool
	epoch uint64
	// next is the LSN after everything that is committed.
	next record.LSN
	// inflight counts the payloads of flushes that are prepared and not done. It tells what LSN a later flush will get if all of
	// them commit.
	inflight int
}

// ledger is the writer's place in each log that it appends to. It does no I/O. A log's place changes only in two steps of a
// flush that flushes pass one after another: prepare claims and opens logs that no earlier flush is about to append to; commit,
// at the head of the order, settles them and opens those that were lost. So nobody opens a log twice at the same time.
type ledger struct {
	max int

	mu struct {
		sync.Mutex
		places map[record.ShardID]place
	}
}

func newLedger(limit int) *ledger {
	l := &ledger{max: limit}
	l.mu.places = make(map[record.ShardID]place)
	return l
}

// claim counts the groups' payloads as in flight and returns the logs that prepare must open: those of the present writer slot.
// Logs of a slot that was lost meanwhile are another writer's; commit decides about them.
func (l *ledger) claim(groups []*group, slot uint16) (unopened []record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evict()
	for _, g := range groups {
		p := l.mu.places[g.shard]
		if !p.open && p.inflight == 0 && (g.exactlyOnce || g.shard.Writer() == slot) {
			unopened = append(unopened, g.shard)
		}
		g.claimed = len(g.payloads)
		p.inflight += g.claimed
		l.mu.places[g.shard] = p
	}
	return unopened
}

// evict forgets logs that are not in use when there are too many: the next flush opens them again.
func (l *ledger) evict() {
	if len(l.mu.places) <= l.max {
		return
	}
	for s, p := range l.mu.places { // in the map's order: random
		if p.inflight == 0 {
			delete(l.mu.places, s)
		}
		if len(l.mu.places) <= l.max*9/10 {
			break
		}
	}
}

// predict sets the groups' places as they will be when all flushes before have committed; 0 where the log is not open.
func (l *ledger) predict(groups []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		p := l.mu.places[g.shard]
		g.epoch, g.lsn = 0, 0
		if p.open {
			g.epoch, g.lsn = p.epoch, p.next+record.LSN(p.inflight-g.claimed)
		}
	}
}

// head sets the places of the groups of the flush whose turn it is as they are, and returns those whose log is not open.
func (l *ledger) head(groups []*group) (lost []*group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		p := l.mu.places[g.shard]
		if !p.open {
			lost = append(lost, g)
			continue
		}
		g.epoch, g.lsn = p.epoch, p.next
	}
	return lost
}

// opened takes over what the engine says of logs that were opened.
func (l *ledger) opened(states []metalog.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range states {
		p := l.mu.places[s.Shard]
		p.open, p.epoch, p.next = true, s.Epoch, s.NextLSN
		l.mu.places[s.Shard] = p
	}
}

// lose marks a log as one that must be opened before it is appended to.
func (l *ledger) lose(s record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.mu.places[s]; ok {
		p.open = false
		l.mu.places[s] = p
	}
}

// move takes a claim from one log to another.
func (l *ledger) move(g *group, to record.ShardID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := l.mu.places[g.shard]
	from.inflight -= g.claimed
	l.mu.places[g.shard] = from
	p := l.mu.places[to]
	p.inflight += g.claimed
	l.mu.places[to] = p
	g.shard = to
}

// settle ends the groups' claims; committed is how many records the flush has appended to each.
func (l *ledger) settle(groups []*group, committed func(*group) int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range groups {
		p := l.mu.places[g.shard]
		p.inflight -= g.claimed
		if p.open {
			p.next += record.LSN(committed(g))
		}
		l.mu.places[g.shard] = p
	}
}
