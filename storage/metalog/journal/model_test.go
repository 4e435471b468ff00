package journal_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"scribe/internal/testkit/testsize"
)

// The model searches every interleaving of two replicas, a network that delays, drops and repeats, and a store that has only the
// head's compare-and-swap. It knows nothing of the code; it is about the rules that the code follows. Each rule can be replaced by
// one that looks as good, and the search must find what that loses.

// modelRules are the rules of a run; the zero value are ours.
type modelRules struct {
	// putIfAbsent stores an entry when its number is free, whatever the head is.
	putIfAbsent bool
	// blindTakeover takes over a head without applying up to it.
	blindTakeover bool
	// trimApplied trims what the leader has applied, whether or not it is in a snapshot that the head names.
	trimApplied bool
	// earlySnapshot names a snapshot in the head before it is uploaded.
	earlySnapshot bool
	// lostIsFailed takes a lost swap for a definite failure, also when it was repeated.
	lostIsFailed bool
	// headOnly looks for its entry in the head only, not in the entries, when a swap is lost.
	headOnly bool
	// newSwap repeats a swap that had no answer on top of the head as it is now.
	newSwap bool
}

// Bounds of the search.
const (
	modelSeqs         = 2 // entries
	modelTransactions = 3
	modelWriters      = 2
	modelNet          = 2 // messages under way
	modelTerms        = 3
	modelTries        = 2
)

// modelHead is a head. Owner is 1 or 2, entry the transaction of the last entry.
type modelHead struct{ rev, term, owner, seq, entry, snap uint8 }

// modelLog are the transactions at numbers 1 and up; 0 for none.
type modelLog [modelSeqs + 1]uint8

// modelMessage is a call on its way to the store.
type modelMessage struct {
	// kind is 's' for a swap and 't' for a trim; 0 for none.
	kind  byte
	from  uint8
	known uint8
	next  modelHead
	// below is that of a trim.
	below uint8
	// basis is the log that the entry was decided on.
	basis modelLog
	// appends says that the swap has an entry, next.entry.
	appends bool
}

// modelWriter is a replica.
type modelWriter struct {
	known   modelHead
	log     modelLog // applied
	n       uint8    // entries in log
	leading bool
	// pending is the swap whose outcome it waits for.
	pending modelMessage
	tries   uint8
}

// modelState is everything. It is comparable.
type modelState struct {
	head    modelHead
	entries modelLog // what the store has
	truth   modelLog // what the head has ever covered
	writers [modelWriters]modelWriter
	net     [modelNet]modelMessage
	// uploaded is the number of the last entry in the newest snapshot that can be read.
	uploaded uint8
	next     uint8 // the next transaction
	acked    uint8 // bit of each transaction
	failed   uint8
}

// modelSearch is a breadth-first search.
type modelSearch struct {
	rules modelRules
	seen  map[modelState]modelStep
	queue []modelState
	// from and violation are of the state that is expanded.
	from      modelState
	violation string
	last      string
}

type modelStep struct {
	from modelState
	what string
}

// runModel returns the shortest way to a violation, or "" and the number of states.
func runModel(rules modelRules) (trace string, states int) {
	s := &modelSearch{rules: rules, seen: map[modelState]modelStep{}}
	start := modelState{next: 1}
	s.seen[start] = modelStep{}
	s.queue = []modelState{start}
	for len(s.queue) > 0 {
		s.from, s.queue = s.queue[0], s.queue[1:]
		s.expandState(s.from)
		if s.violation != "" {
			return s.traceTo(s.from) + s.last + "\n=> " + s.violation, len(s.seen)
		}
	}
	return "", len(s.seen)
}

func (s *modelSearch) traceTo(state modelState) string {
	var lines []string
	for step := s.seen[state]; step.what != ""; step = s.seen[step.from] {
		lines = append(lines, step.what+"\n")
	}
	slices.Reverse(lines)
	return strings.Join(lines, "")
}

// addState adds a state that is reached by a step.
func (s *modelSearch) addState(to modelState, format string, args ...any) {
	if s.violation != "" {
		return
	}
	// The order of messages under way means nothing.
	if to.net[0].kind == 0 {
		to.net[0], to.net[1] = to.net[1], to.net[0]
	}
	if _, ok := s.seen[to]; !ok {
		s.seen[to] = modelStep{from: s.from, what: fmt.Sprintf(format, args...)}
		s.queue = append(s.queue, to)
	}
}

// violate records a violation that a step leads to; the first one counts.
func (s *modelSearch) violate(what, format string, args ...any) {
	if s.violation == "" {
		s.violation, s.last = fmt.Sprintf(format, args...), what
	}
}

func (s *modelSearch) expandState(at modelState) {
	for w := range uint8(modelWriters) {
		s.catchUp(at, w)
		s.takeOver(at, w)
		s.appendEntry(at, w)
		s.repeatSwap(at, w)
		s.keepSnapshot(at, w)
		s.trimEntries(at, w)
	}
	for i := range at.net {
		if at.net[i].kind != 0 {
			s.deliver(at, i, true)
			s.deliver(at, i, false)
			dropped := at
			dropped.net[i] = modelMessage{}
			s.addState(dropped, "the network loses a message of %d", at.net[i].from)
		}
	}
}

// send puts a message on the network, if there is room.
func send(at *modelState, m modelMessage) bool {
	for i := range at.net {
		if at.net[i].kind == 0 {
			at.net[i] = m
			return true
		}
	}
	return false
}

// catchUp: a replica that does not lead applies everything up to the head.
func (s *modelSearch) catchUp(at modelState, w uint8) {
	me := &at.writers[w]
	if me.leading || me.pending.kind != 0 {
		return
	}
	what := fmt.Sprintf("%d applies up to %d", w, at.head.seq)
	for me.n < at.head.seq {
		if at.entries[me.n+1] != 0 {
			me.n++
			me.log[me.n] = at.entries[me.n]
			continue
		}
		if at.uploaded <= me.n {
			s.violate(what, "entry %d is gone, and the newest snapshot is at %d", me.n+1, at.uploaded)
			return
		}
		me.n = at.uploaded
		copy(me.log[:me.n+1], at.truth[:me.n+1])
	}
	if me.log != at.truth {
		s.violate(what, "it applied %v, the journal is %v", me.log, at.truth)
		return
	}
	me.known = at.head
	s.addState(at, "%s", what)
}

// takeOver: a replica asks for the lead.
func (s *modelSearch) takeOver(at modelState, w uint8) {
	me := &at.writers[w]
	if me.leading || me.pending.kind != 0 {
		return
	}
	if s.rules.blindTakeover {
		me.known = at.head
	}
	if me.known.term == modelTerms || me.known.rev > at.head.rev {
		return
	}
	next := me.known
	next.term, next.owner = next.term+1, w+1
	s.sendSwap(at, w, modelMessage{kind: 's', from: w, known: me.known.rev, next: next}, "asks to lead")
}

func (s *modelSearch) sendSwap(at modelState, w uint8, m modelMessage, what string) {
	me := &at.writers[w]
	m.next.rev = m.known + 1
	if send(&at, m) {
		me.pending, me.tries = m, 1
		s.addState(at, "%d %s, from revision %d", w, what, m.known)
	}
}

// appendEntry: a leader appends its next transaction.
func (s *modelSearch) appendEntry(at modelState, w uint8) {
	me := &at.writers[w]
	if !me.leading || me.pending.kind != 0 || me.known.seq == modelSeqs {
		return
	}
	next := me.known
	next.seq, next.entry = next.seq+1, at.next
	at.next++
	if next.entry > modelTransactions {
		return
	}
	s.sendSwap(at, w, modelMessage{kind: 's', from: w, known: me.known.rev, next: next, basis: me.log, appends: true}, fmt.Sprintf("appends transaction %d as %d", next.entry, next.seq))
}

// repeatSwap: a replica repeats what it has no answer to.
func (s *modelSearch) repeatSwap(at modelState, w uint8) {
	me := &at.writers[w]
	if me.pending.kind == 0 || me.tries == modelTries {
		return
	}
	m := me.pending
	if s.rules.newSwap && m.appends && at.head.owner == w+1 && at.head.seq < modelSeqs {
		next := at.head
		next.rev, next.seq, next.entry = at.head.rev+1, at.head.seq+1, m.next.entry
		m.known, m.next, m.basis = at.head.rev, next, at.truth
	}
	if send(&at, m) {
		me.tries++
		me.pending = m
		s.addState(at, "%d repeats, from revision %d", w, m.known)
	}
}

// keepSnapshot: a leader uploads what it has applied, and names it in the head.
func (s *modelSearch) keepSnapshot(at modelState, w uint8) {
	me := &at.writers[w]
	if !me.leading || me.pending.kind != 0 || me.known.snap == me.n {
		return
	}
	next := me.known
	next.snap = me.n
	if !s.rules.earlySnapshot {
		at.uploaded = max(at.uploaded, me.n)
	}
	s.sendSwap(at, w, modelMessage{kind: 's', from: w, known: me.known.rev, next: next}, fmt.Sprintf("names its snapshot at %d", me.n))
}

// trimEntries: a replica that leads, or believes so, trims.
func (s *modelSearch) trimEntries(at modelState, w uint8) {
	me := &at.writers[w]
	below := me.known.snap + 1
	if s.rules.trimApplied {
		below = me.n + 1
	}
	if !me.leading || below == 1 {
		return
	}
	if send(&at, modelMessage{kind: 't', from: w, below: below}) {
		s.addState(at, "%d trims below %d", w, below)
	}
}

// deliver: a message takes effect, and its answer arrives or is lost.
func (s *modelSearch) deliver(at modelState, i int, answered bool) {
	m := at.net[i]
	at.net[i] = modelMessage{}
	what := fmt.Sprintf("a message of %d arrives (answered: %v)", m.from, answered)
	if m.kind == 't' {
		if s.rules.trimApplied || m.below <= at.head.snap+1 {
			clear(at.entries[1:m.below])
		}
		s.addState(at, "%s: entries below %d are gone", what, m.below)
		return
	}
	won := m.known == at.head.rev
	if s.rules.putIfAbsent && m.appends {
		won = at.entries[m.next.seq] == 0
	}
	if won {
		s.applySwap(&at, m, what)
	}
	if me := &at.writers[m.from]; answered && me.pending == m {
		s.conclude(&at, m, won, what)
	}
	s.addState(at, "%s: swap to revision %d, won: %v", what, m.next.rev, won)
}

// applySwap changes the store.
func (s *modelSearch) applySwap(at *modelState, m modelMessage, what string) {
	if m.appends {
		at.entries[m.next.seq] = m.next.entry
		if m.next.seq > at.head.seq || !s.rules.putIfAbsent {
			s.checkAppend(at, m, what)
			at.truth[m.next.seq] = m.next.entry
		}
	}
	if m.next.seq >= at.head.seq {
		at.head = m.next
	}
}

// checkAppend checks an entry that becomes part of the journal.
func (s *modelSearch) checkAppend(at *modelState, m modelMessage, what string) {
	if slices.Contains(at.truth[1:], m.next.entry) {
		s.violate(what, "transaction %d is in the journal twice", m.next.entry)
	}
	if m.basis != at.truth {
		s.violate(what, "transaction %d was decided on %v, the journal is %v", m.next.entry, m.basis, at.truth)
	}
	if at.failed>>m.next.entry&1 == 1 {
		s.violate(what, "transaction %d was told to have failed", m.next.entry)
	}
}

// conclude: a replica gets the answer to its swap, and decides as Leader.judgeLost does.
func (s *modelSearch) conclude(at *modelState, m modelMessage, won bool, what string) {
	me := &at.writers[m.from]
	me.pending, me.tries = modelMessage{}, 0
	if won || (at.head == m.next && !s.rules.lostIsFailed) {
		me.known, me.leading = m.next, true
		s.acknowledge(at, m, what)
		return
	}
	me.leading = false
	if !m.appends {
		return
	}
	switch {
	case s.rules.lostIsFailed || s.rules.headOnly || at.head.seq < m.next.seq:
		s.failTransaction(at, m, what)
	case at.entries[m.next.seq] == m.next.entry:
		s.acknowledge(at, m, what)
	case at.entries[m.next.seq] != 0:
		s.failTransaction(at, m, what)
	}
	// Trimmed: it stays unknown.
}

func (s *modelSearch) acknowledge(at *modelState, m modelMessage, what string) {
	if !m.appends {
		return
	}
	me := &at.writers[m.from]
	if me.leading && me.n < m.next.seq {
		me.n = m.next.seq
		me.log[me.n] = m.next.entry
	}
	at.acked |= 1 << m.next.entry
	if !slices.Contains(at.truth[1:], m.next.entry) {
		s.violate(what, "transaction %d is acknowledged, and lost", m.next.entry)
	}
}

func (s *modelSearch) failTransaction(at *modelState, m modelMessage, what string) {
	at.failed |= 1 << m.next.entry
	if slices.Contains(at.truth[1:], m.next.entry) {
		s.violate(what, "transaction %d is told to have failed, and is in the journal", m.next.entry)
	}
}

// TestModel: our rules keep every promise in every interleaving of the bounds above, and each rule is needed.
func TestModel(t *testing.T) {
	if testing.Short() && testsize.RaceEnabled {
		t.Skip("it has one goroutine")
	}
	trace, states := runModel(modelRules{})
	if trace != "" {
		t.Fatalf("our rules break a promise:\n%s", trace)
	}
	t.Logf("%d states", states)
	if states < 10_000 {
		t.Errorf("only %d states: the model does not move", states)
	}
}

// TestModelCounterexamples: the search finds what other rules lose.
func TestModelCounterexamples(t *testing.T) {
	for _, c := range []struct {
		name  string
		rules modelRules
		want  string
	}{
		{"put if absent", modelRules{putIfAbsent: true}, "lost"},
		{"blind takeover", modelRules{blindTakeover: true}, "was decided on"},
		{"trim what is applied", modelRules{trimApplied: true}, "is gone"},
		{"name a snapshot early", modelRules{earlySnapshot: true}, "is gone"},
		{"lost is failed", modelRules{lostIsFailed: true}, "told to have failed"},
		{"look in the head only", modelRules{headOnly: true}, "told to have failed"},
		{"repeat on the new head", modelRules{newSwap: true}, "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace, states := runModel(c.rules)
			if !strings.Contains(trace, c.want) {
				t.Fatalf("in %d states: found %q, want %q", states, trace, c.want)
			}
			t.Logf("in %d states:\n%s", states, trace)
		})
	}
}
