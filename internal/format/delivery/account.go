package delivery

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Line is how complete a category is of one host and minute: Produced = Stored + Dropped + Sampled + Pending + Unaccounted.
type Line struct {
	// Host is the machine on which the messages were produced; empty if nobody has said it.
	Host   string    `json:"host"`
	Minute time.Time `json:"minute"`
	// Produced is how many messages producers have taken of their programs, Stored how many of them the cell has.
	Produced int64 `json:"produced"`
	Stored   int64 `json:"stored"`
	// Dropped are those that a hop has given up, Sampled those that the category's quota left out.
	Dropped int64 `json:"dropped"`
	Sampled int64 `json:"sampled"`
	// Pending are those that a producer or an agent still has.
	Pending int64 `json:"pending"`
	// Unaccounted are those of which nobody says that he has them, or what became of them: their outcome is unknown, or a crash took them.
	Unaccounted int64 `json:"unaccounted"`
	// Copies is how many messages are stored again; known only of an account that has seen the log.
	Copies int64 `json:"copies,omitempty"`
	// Rate is how many messages one stands for that was stored, if some were left out.
	Rate float64 `json:"rate,omitempty"`
	// Reasons are the parts of Dropped, as HOP:REASON; Held are those of Pending by hop.
	Reasons map[string]int64 `json:"reasons,omitempty"`
	Held    map[string]int64 `json:"held,omitempty"`
	// Delivered is what readers were given, by group or reader; repetitions count.
	Delivered map[string]int64 `json:"delivered,omitempty"`
}

// UnknownOutcome is the reason of what a hop gave up although it may have been stored: that is nobody's loss yet.
const UnknownOutcome = "unknown_outcome"

// Account adds up rows of one category, and what was read of its log. It is not safe for concurrent use.
type Account struct {
	category string
	since    int64 // the first minute
	seen     map[string]struct{}
	hosts    map[uint64]claim // of producers
	sums     map[sumKey]*sum
	// unplaced are drops of an agent that does not know whose they were.
	unplaced map[dropKey]int64
	// holds is what agents last said that they have.
	holds map[hopKey]hold
	// near has the minutes in which a hop before the cell counted messages without a producer's id.
	near map[int64]bool
	// log is what was read; nil of an account that has not seen it.
	log map[stream]*ranges
}

// sumKey says which messages are counted together. Those without a producer's id are told apart by host.
type sumKey struct {
	producer uint64
	host     string
	minute   int64
}

// sum is what hops say of the messages of one key.
type sum struct {
	library Counts
	agents  map[hopKey]Counts
	// unknown is the part of what was dropped that may have been stored.
	unknown        int64
	reasons        map[string]int64
	delivered      map[string]int64
	logged, copies int64
}

type dropKey struct {
	hop, host, reason string
	minute            int64
}

// hopKey is an agent, or that of a process of the cell.
type hopKey struct{ hop, host, agent string }

// claim is what a hop says of where a producer is. The nearest one counts.
type claim struct {
	host string
	rank int
}

// ranks are how near to the producer the hops are.
var ranks = map[string]int{Library: 3, Agent: 2, Cell: 1}

type hold struct {
	messages int64
	at       time.Time
}

// stream is a sequence of a producer's messages.
type stream struct {
	producer uint64
	epoch    uint32
	shard    uint32
}

// NewAccount returns an empty account of a category, from the minute of a time on.
func NewAccount(category string, since time.Time) *Account {
	return &Account{
		category: category, since: MinuteOf(since.UnixMicro()), seen: make(map[string]struct{}), hosts: make(map[uint64]claim),
		sums: make(map[sumKey]*sum), unplaced: make(map[dropKey]int64), holds: make(map[hopKey]hold), near: make(map[int64]bool),
	}
}

func (a *Account) sumOf(key sumKey) *sum {
	if key.producer != 0 {
		key.host = ""
	}
	s := a.sums[key]
	if s == nil {
		s = &sum{agents: make(map[hopKey]Counts), reasons: make(map[string]int64), delivered: make(map[string]int64)}
		a.sums[key] = s
	}
	return s
}

// AddRow adds a row that was stored at a time, unless it is of another category or was added before.
func (a *Account) AddRow(r *Row, minute int64, stored time.Time) {
	if r.Category != a.category {
		return
	}
	if _, again := a.seen[r.ID]; again {
		return
	}
	a.seen[r.ID] = struct{}{}
	producer, err := r.ProducerID()
	if err != nil {
		return
	}
	hop := hopKey{r.Hop, r.Host, r.Agent}
	if r.Held != nil {
		if last, ok := a.holds[hop]; !ok || !stored.Before(last.at) {
			a.holds[hop] = hold{*r.Held, stored}
		}
	}
	if rank := ranks[r.Hop]; producer != 0 && r.Host != "" && rank > a.hosts[producer].rank {
		a.hosts[producer] = claim{r.Host, rank}
	}
	if minute < a.since || r.Counts == (Counts{}) {
		return
	}
	key := sumKey{producer, r.Host, minute}
	switch r.Hop {
	case Library:
		s := a.sumOf(key)
		s.library = s.library.Plus(r.Counts)
		s.addReason(r)
	case Agent, Cell:
		if producer == 0 && r.Dropped > 0 && r.Produced == 0 && r.Reason != UnknownOutcome {
			a.unplaced[dropKey{r.Hop, r.Host, r.Reason, minute}] += r.Dropped
			return
		}
		if producer == 0 && r.Hop == Agent {
			a.near[minute] = true
		}
		s := a.sumOf(key)
		s.agents[hop] = s.agents[hop].Plus(r.Counts)
		s.addReason(r)
	case Reader:
		if r.Delivered != 0 {
			key.host = ""
			a.sumOf(key).delivered[r.Reader] += r.Delivered
		}
	}
}

// addReason notes why messages were dropped.
func (s *sum) addReason(r *Row) {
	switch {
	case r.Dropped == 0:
	case r.Reason == UnknownOutcome:
		s.unknown += r.Dropped
	default:
		s.reasons[r.Hop+":"+r.Reason] += r.Dropped
	}
}

// Place is where a message stands in its producer's sequence. One without a sequence is of producer 0.
type Place struct {
	Producer uint64
	Epoch    uint32
	Shard    uint32
	Sequence uint64
}

// AddStored adds a message that was read, of a frame that was begun at a time in Unix microseconds. From the first one on, what is stored is what
// was read: call it with all messages of the time, and [Account.SeeLog] in any case.
func (a *Account) AddStored(p Place, begun int64) {
	a.SeeLog()
	minute := MinuteOf(begun)
	fresh := true
	if p.Producer != 0 {
		key := stream{p.Producer, p.Epoch, p.Shard}
		r := a.log[key]
		if r == nil {
			r = new(ranges)
			a.log[key] = r
		}
		fresh = r.add(p.Sequence)
	}
	if minute < a.since {
		return
	}
	s := a.sumOf(sumKey{producer: p.Producer, minute: minute})
	if fresh {
		s.logged++
	} else {
		s.copies++
	}
}

// SeeLog says that the log was read.
func (a *Account) SeeLog() {
	if a.log == nil {
		a.log = make(map[stream]*ranges)
	}
}

// ForgetLog undoes SeeLog and AddStored: the log could not be read as a whole.
func (a *Account) ForgetLog() {
	a.log = nil
	for _, s := range a.sums {
		s.logged, s.copies = 0, 0
	}
}

// ranges is a set of numbers.
type ranges struct{ of []span }

type span struct{ from, to uint64 } // to is not in it

// add adds a number, and reports whether it was not in the set. Numbers mostly come in order.
func (r *ranges) add(n uint64) bool {
	i, _ := slices.BinarySearchFunc(r.of, n, func(s span, n uint64) int { return cmp.Compare(s.from, n) })
	if i > 0 && r.of[i-1].to >= n { // n is in it, or follows it
		i--
	}
	if i == len(r.of) || n+1 < r.of[i].from {
		r.of = slices.Insert(r.of, i, span{n, n + 1})
		return true
	}
	s := &r.of[i]
	switch {
	case s.from <= n && n < s.to:
		return false
	case n == s.to:
		s.to++
		if i+1 < len(r.of) && r.of[i+1].from == s.to {
			s.to = r.of[i+1].to
			r.of = slices.Delete(r.of, i+1, i+2)
		}
	default: // n+1 == s.from
		s.from = n
	}
	return true
}

// lineKey is what a [Line] is of.
type lineKey struct {
	host   string
	minute int64
}

// Lines returns a line for each host and minute of which there is anything, by minute and host.
func (a *Account) Lines() []Line {
	lines := make(map[lineKey]*Line)
	lineOf := func(host string, minute int64) *Line {
		key := lineKey{host, minute}
		l := lines[key]
		if l == nil {
			l = &Line{Host: host, Minute: timeOf(minute), Reasons: map[string]int64{}, Held: map[string]int64{}, Delivered: map[string]int64{}}
			lines[key] = l
		}
		return l
	}
	named := a.countNamed()
	for key, s := range a.sums {
		if a.isCountedBefore(key, s) {
			continue
		}
		host := key.host
		if key.producer != 0 {
			host = a.hosts[key.producer].host
		}
		s.addTo(lineOf(host, key.minute), a.storedOf(key, s, named[key.minute]))
	}
	for key := range a.unplaced {
		lineOf(key.host, key.minute)
	}
	sorted := slices.SortedFunc(maps.Values(lines), func(x, y *Line) int {
		return cmp.Or(x.Minute.Compare(y.Minute), strings.Compare(x.Host, y.Host))
	})
	a.placeDrops(sorted, lineOf)
	a.compareHolds(sorted)
	out := make([]Line, 0, len(sorted))
	for _, l := range sorted {
		if l.finish(); l.Produced != 0 || l.Copies != 0 || len(l.Delivered) > 0 {
			out = append(out, *l)
		}
	}
	return out
}

// isCountedBefore reports whether messages without a producer's id, which a process of the cell counted, came from agents that counted them, too: nobody
// can tell which did not.
func (a *Account) isCountedBefore(key sumKey, s *sum) bool {
	if key.producer != 0 || key.host == "" || !a.near[key.minute] || s.library != (Counts{}) {
		return false
	}
	for hop := range s.agents {
		if hop.hop != Cell {
			return false
		}
	}
	return true
}

// countNamed counts, by minute, the messages without a producer's id that hosts say are stored.
func (a *Account) countNamed() map[int64]int64 {
	named := make(map[int64]int64)
	for key, s := range a.sums {
		if key.producer == 0 && key.host != "" && !a.isCountedBefore(key, s) {
			named[key.minute] += s.saidStored()
		}
	}
	return named
}

// storedOf returns how many messages of a key are stored: what the log has, if it was seen. It does not say whose messages without a producer's
// id are: those that no host claims, named of which are claimed, are nobody's.
func (a *Account) storedOf(key sumKey, s *sum, named int64) int64 {
	switch {
	case a.log == nil, key.producer == 0 && key.host != "":
		return s.saidStored()
	case key.producer == 0:
		return max(s.logged-named, 0)
	}
	return s.logged
}

// agent returns what the agents that the messages passed count together: each counts what came to it, the first one all of it. What one has dropped the
// next one never got. has is how many messages one of them has by its counts.
func (s *sum) agent() (c Counts, has int64) {
	for _, o := range s.agents {
		c.Produced, c.Stored, c.Sampled = max(c.Produced, o.Produced), max(c.Stored, o.Stored), max(c.Sampled, o.Sampled)
		c.Dropped += o.Dropped
		has = max(has, o.Produced-o.Passed-o.Stored-o.Sampled-o.Dropped)
	}
	return c, has
}

// saidStored is what hops say is stored. A library and an agent count the same messages, the agent those that came to it.
func (s *sum) saidStored() int64 {
	agent, _ := s.agent()
	return max(s.library.Stored, agent.Stored)
}

// addTo adds the messages of one key to their line. The larger of what a library and an agent count is that of both; what either has dropped, the
// other has not.
func (s *sum) addTo(l *Line, stored int64) {
	agent, has := s.agent()
	sampled := max(s.library.Sampled, agent.Sampled)
	dropped := s.library.Dropped + agent.Dropped - s.unknown
	known := stored + sampled + dropped
	produced := max(s.library.Produced, agent.Produced, known)
	left := produced - known
	take := func(n int64) int64 {
		n = min(max(n, 0), left)
		left -= n
		return n
	}
	inLibrary := take(s.library.Produced - s.library.Passed - s.library.Stored - s.library.Sampled - s.library.Dropped)
	inAgent := take(has)
	l.Produced += produced
	l.Stored += stored
	l.Sampled += sampled
	l.Dropped += dropped
	l.Copies += s.copies
	l.Unaccounted += left
	l.Pending += inLibrary + inAgent
	addTo(l.Held, Library, inLibrary)
	addTo(l.Held, Agent, inAgent)
	for reason, n := range s.reasons {
		l.Reasons[reason] += n
	}
	for reader, n := range s.delivered {
		l.Delivered[reader] += n
	}
}

func addTo(m map[string]int64, key string, n int64) {
	if n != 0 {
		m[key] += n
	}
}

// placeDrops gives the drops of which an agent does not know the minute to the host's oldest messages that it would else have. What it had taken
// before the time of the account goes to the minute in which it was dropped.
func (a *Account) placeDrops(sorted []*Line, lineOf func(string, int64) *Line) {
	keys := slices.SortedFunc(maps.Keys(a.unplaced), func(x, y dropKey) int {
		return cmp.Or(cmp.Compare(x.minute, y.minute), strings.Compare(x.host, y.host), strings.Compare(x.hop, y.hop), strings.Compare(x.reason, y.reason))
	})
	for _, key := range keys {
		left, reason := a.unplaced[key], key.hop+":"+key.reason
		for _, l := range sorted {
			if l.Host != key.host || left == 0 {
				continue
			}
			n := min(left, l.Held[Agent])
			l.Held[Agent] -= n
			l.Pending -= n
			l.Dropped += n
			addTo(l.Reasons, reason, n)
			left -= n
		}
		l := lineOf(key.host, key.minute)
		l.Produced += left
		l.Dropped += left
		addTo(l.Reasons, reason, left)
	}
}

// compareHolds compares what agents must have by their counts with what they say that they have: what is more, a crash took. It was in memory, so
// it was of the newest.
func (a *Account) compareHolds(sorted []*Line) {
	have := make(map[string]int64)
	for key, h := range a.holds {
		have[key.host] += h.messages
	}
	for _, l := range sorted {
		n := min(l.Held[Agent], have[l.Host])
		have[l.Host] -= n
		gone := l.Held[Agent] - n
		l.Held[Agent] = n
		l.Pending -= gone
		l.Unaccounted += gone
	}
}

// finish removes what is empty, and computes the rate.
func (l *Line) finish() {
	for _, m := range []map[string]int64{l.Reasons, l.Held, l.Delivered} {
		maps.DeleteFunc(m, func(_ string, n int64) bool { return n == 0 })
	}
	if l.Sampled > 0 && l.Stored > 0 {
		l.Rate = float64(l.Stored+l.Sampled) / float64(l.Stored)
	}
}
