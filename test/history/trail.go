package history

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// Unbounded is the ordering window of a consumer without one.
const Unbounded = time.Duration(-1)

// Trail is the sequence of messages and gaps that one consumer got over all its lives. A consumer that dies loses what it got since its
// last saved checkpoint, and resumes from there. So a trail has what an application has that saves its work and its checkpoint together.
// It is safe for concurrent use.
type Trail struct {
	name     string
	category string
	window   time.Duration
	// late means that messages trimmed before the consumer began may be missing; else it has everything from the first LSN on.
	late bool

	mu struct {
		sync.Mutex
		steps []trailStep
		// messages counts the steps that are messages.
		messages int
		kept     int
		ids      map[ID]int
		lives    int
		// begun is the latest time, in Unix microseconds, at which the consumer of a late trail learned where its logs begin.
		begun int64
	}
}

// trailStep is a message, or a gap.
type trailStep struct {
	readMessage
	gap *reportedGap
}

// reportedGap is a gap that a consumer was told of: pointers [from, to) of a shard, except the first delivered messages of from.
type reportedGap struct {
	shard     uint64
	from, to  uint64
	delivered int
	reason    string
	told      int64 // Unix microseconds
}

// Follow begins the trail of a consumer that reads a category from its beginning, with an ordering window; 0 is strict.
func (h *History) Follow(category, name string, window time.Duration) *Trail {
	t := &Trail{name: name, category: category, window: window}
	t.mu.ids = map[ID]int{}
	return t
}

// FollowLate is Follow for a consumer that begins with the first remaining message of each log, after retention has trimmed.
func (h *History) FollowLate(category, name string, window time.Duration, now time.Time) *Trail {
	t := h.Follow(category, name, window)
	t.late = true
	t.mu.begun = now.Add(changing).UnixMicro()
	return t
}

// Begun notes that by now the consumer of a late trail has its first stream, and knows where its logs begin.
func (t *Trail) Begun(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.begun = max(t.mu.begun, now.UnixMicro())
}

// Record notes the next message that was delivered. The payload is not kept. Persisted is in Unix microseconds.
func (t *Trail) Record(payload []byte, logical uint32, shard, lsn uint64, index int, persisted int64) {
	t.addStep(trailStep{readMessage: newReadMessage(payload, logical, position{shard, lsn, index}, persisted)})
}

// Gap notes that the consumer was told that pointers [from, to) of a shard will not come, except the first delivered messages of from.
func (t *Trail) Gap(shard, from, to uint64, delivered int, reason string, now time.Time) {
	t.addStep(trailStep{gap: &reportedGap{shard, from, to, delivered, reason, now.UnixMicro()}})
}

func (t *Trail) addStep(s trailStep) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.steps = append(t.mu.steps, s)
	if s.gap == nil {
		t.mu.messages++
		t.mu.ids[s.content.id]++
	}
}

// Keep notes that the consumer saved a checkpoint of its position.
func (t *Trail) Keep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.kept = len(t.mu.steps)
}

// Die drops the steps since Keep.
func (t *Trail) Die() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.mu.steps[t.mu.kept:] {
		if s.gap == nil {
			t.mu.messages--
			t.mu.ids[s.content.id]--
		}
	}
	t.mu.steps = t.mu.steps[:t.mu.kept]
	t.mu.lives++
}

// Lives returns how often the consumer died.
func (t *Trail) Lives() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.lives
}

// Len returns the number of messages in the trail.
func (t *Trail) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.messages
}

// Now returns the current event count, for CountMissing.
func (h *History) Now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.now
}

// CountMissing returns the number of messages that were acknowledged as committed by a moment (see Now) and are not in the trail.
func (h *History) CountMissing(t *Trail, until int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for id, m := range h.mu.categories[t.category].messages {
		if m.committed != 0 && m.committed <= until && t.mu.ids[id] == 0 {
			n++
		}
	}
	return n
}

// Reading returns the messages of a trail as the reading of one reader.
func (t *Trail) Reading() *Reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Reading{category: t.category, seen: t.collectMessages()}
}

// collectMessages returns the messages of a trail without its gaps. t.mu is held.
func (t *Trail) collectMessages() (messages []readMessage) {
	for i := range t.mu.steps {
		if t.mu.steps[i].gap == nil {
			messages = append(messages, t.mu.steps[i].readMessage)
		}
	}
	return messages
}

// Reaches reports whether a trail has come at least as far as a reading. A late trail need not have a shard whose messages had all
// expired when it began.
func (h *History) Reaches(t *Trail, r *Reading) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.mu.categories[t.category]
	last := t.lastPositions()
	t.mu.Lock()
	knew := t.mu.begun
	t.mu.Unlock()
	for i := range r.seen {
		p := r.seen[i].position
		at, begun := last[p.shard]
		if !begun && t.late && c.hasExpired(r.seen[i].persisted, knew+h.mu.skew) {
			continue
		}
		if !begun || at.before(p) {
			return false
		}
	}
	return true
}

func (p position) before(q position) bool {
	return p.lsn < q.lsn || p.lsn == q.lsn && p.index < q.index
}

// Until returns the part of a reading that a trail has reached.
func (t *Trail) Until(r *Reading) *Reading {
	last := t.lastPositions()
	part := &Reading{category: r.category, part: true}
	for _, s := range r.seen {
		if q, ok := last[s.position.shard]; ok && !q.before(s.position) {
			part.seen = append(part.seen, s)
		}
	}
	return part
}

// lastPositions returns the last position of a trail in each shard.
func (t *Trail) lastPositions() map[uint64]position {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := map[uint64]position{}
	for i := range t.mu.steps {
		if s := &t.mu.steps[i]; s.gap == nil {
			last[s.position.shard] = s.position
		} else {
			last[s.gap.shard] = position{shard: s.gap.shard, lsn: s.gap.to - 1, index: math.MaxInt}
		}
	}
	return last
}

// CheckTrail checks what a consumer got: bytes, positions, order. whole is a reading of all messages that ever existed, which the trail
// Reaches: the trail must have exactly these, except those that retention had removed before the consumer reached them. With a nil
// reading, the end of the trail is not checked.
func (h *History) CheckTrail(t *Trail, whole *Reading) *Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	k := &historyChecker{
		skew: h.mu.skew, c: h.mu.categories[t.category], r: &Reading{category: t.category + ", " + t.name, seen: t.collectMessages()}, report: new(Report),
		count: map[*writtenMessage]int{}, persisted: map[*writtenMessage]int64{},
	}
	messages := k.checkContents()
	k.checkSteps(t)
	k.checkWindow(t.window)
	if t.window == 0 {
		k.checkKeyOrder(messages)
	}
	if whole != nil {
		k.checkAgreement(t, whole)
	}
	if whole != nil && k.report.Missed == 0 {
		k.checkBatches(messages)
		if !whole.part {
			k.checkEnds(messages)
		}
	}
	return k.report
}

// checkSteps checks that each step continues the previous one of its shard, that gaps cover all missing messages, and that gaps are correct.
func (k *historyChecker) checkSteps(t *Trail) {
	type at struct {
		lsn  uint64 // the next one, or the one that index is in
		next int    // messages of lsn that were delivered
	}
	where := map[uint64]at{}
	for i := range t.mu.steps {
		s := &t.mu.steps[i]
		shard := s.position.shard
		if s.gap != nil {
			shard = s.gap.shard
		}
		w, ok := where[shard]
		switch {
		case ok:
		case t.late && s.gap == nil:
			w = at{lsn: s.position.lsn}
		case t.late:
			w = at{lsn: s.gap.from}
		case s.gap == nil && k.c.beginsAt(s.position):
			w = at{lsn: s.position.lsn}
		case s.gap != nil && k.c.beginsAt(position{lsn: s.gap.from}): // what was trimmed since
			w = at{lsn: s.gap.from}
		default:
			w = at{lsn: 1}
		}
		if g := s.gap; g != nil {
			// Before the gap the consumer got all of from-1, or a part of from.
			fits := g.to > g.from && (g.from == w.lsn && g.delivered == w.next || g.from == w.lsn+1 && g.delivered == 0 && w.next > 0)
			if !fits {
				k.addViolation(WrongGap, "shard %#x: a gap of LSN %d to %d behind %d messages of %d stands behind LSN %d, %d messages", shard, g.from, g.to-1, g.delivered, g.from, w.lsn, w.next)
			}
			// A payload that a consumer has a pointer to may be gone when it asks for it, if it was trimmed in between.
			if g.reason != "trimmed" && (g.reason != "missing" || k.c.retention == nil) {
				k.addViolation(Unresolved, "shard %#x: LSN %d to %d are %s", shard, g.from, g.to-1, g.reason)
			}
			where[shard] = at{lsn: g.to}
			continue
		}
		switch p := s.position; {
		case p.lsn == w.lsn && p.index == w.next:
		case p.lsn == w.lsn+1 && p.index == 0 && w.next > 0:
		case p.lsn < w.lsn, p.lsn == w.lsn && p.index < w.next:
			k.addViolation(Repeated, "%s comes again, behind LSN %d, %d messages", s.describePosition(), w.lsn, w.next)
		default:
			k.addViolation(Skipped, "%s stands behind LSN %d, %d messages, and nothing was said of those between", s.describePosition(), w.lsn, w.next)
		}
		where[shard] = at{s.position.lsn, s.position.index + 1}
	}
}

// checkWindow checks that no message is older than a previous one by more than the consumer's window. With a strict window, messages of
// the same time are ordered by shard and LSN.
func (k *historyChecker) checkWindow(window time.Duration) {
	if window == Unbounded {
		return
	}
	var newest *readMessage
	for i := range k.r.seen {
		s := &k.r.seen[i]
		if newest != nil && s.persisted < newest.persisted-window.Microseconds() {
			k.addViolation(OutOfWindow, "%s was persisted %v before %s, which came earlier; the window is %v", s.describePosition(),
				time.Duration(newest.persisted-s.persisted)*time.Microsecond, newest.describePosition(), window)
		}
		if window == 0 && newest != nil && s.persisted == newest.persisted && s.position.shard < newest.position.shard {
			k.addViolation(OutOfWindow, "%s stands behind %s, of the same time; the order is strict", s.describePosition(), newest.describePosition())
		}
		if newest == nil || s.persisted >= newest.persisted {
			newest = s
		}
	}
}

// checkAgreement compares the positions of a trail with those of all messages that ever existed: the trail has each of them, or it had
// expired when the consumer was told that it is gone.
func (k *historyChecker) checkAgreement(t *Trail, whole *Reading) {
	have := map[position]messageDigest{}
	gaps := map[uint64][]*reportedGap{}
	first := map[uint64]position{}
	for i := range t.mu.steps {
		s := &t.mu.steps[i]
		begin := s.position
		if s.gap != nil {
			begin = position{shard: s.gap.shard, lsn: s.gap.from, index: s.gap.delivered}
			gaps[s.gap.shard] = append(gaps[s.gap.shard], s.gap)
		} else {
			have[s.position] = s.content
		}
		if _, ok := first[begin.shard]; !ok {
			first[begin.shard] = begin
		}
	}
	for i := range whole.seen {
		s := &whole.seen[i]
		if got, ok := have[s.position]; ok {
			if got != s.content {
				k.addViolation(Changed, "%s holds %v for one reader and %v for another", s.describePosition(), got.id, s.content.id)
			}
			delete(have, s.position)
			continue
		}
		begin, begun := first[s.position.shard]
		told := int64(0)
		switch g := findCoveringGap(gaps[s.position.shard], s.position); {
		case g != nil:
			told = g.told
		case t.late && (!begun || s.position.before(begin)):
			told = t.mu.begun
		default:
			k.addViolation(Skipped, "%s, %v, did not come", s.describePosition(), s.content.id)
			continue
		}
		k.report.Missed++
		if !k.c.hasExpired(s.persisted, told+k.skew) {
			k.addViolation(Owed, "%s, %v, was gone when it was %v old", s.describePosition(), s.content.id, time.Duration(told-s.persisted)*time.Microsecond)
		}
	}
	for p, got := range have {
		s := readMessage{position: p}
		k.addViolation(Changed, "%s holds %v for this reader, and nothing for another", s.describePosition(), got.id)
	}
}

// findCoveringGap returns the gap that covers a position, or nil.
func findCoveringGap(gaps []*reportedGap, p position) *reportedGap {
	for _, g := range gaps {
		if p.lsn >= g.from && p.lsn < g.to && (p.lsn > g.from || p.index >= g.delivered) {
			return g
		}
	}
	return nil
}

// retentionChange says how long messages are kept from a time on.
type retentionChange struct {
	from  int64 // Unix microseconds
	made  int64 // when the change was acknowledged
	keeps time.Duration
}

// Retain notes that a category's retention is about to change to keeps. Without any call, no message may ever be removed.
func (h *History) Retain(category string, keeps time.Duration, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.mu.categories[category]
	c.retention = append(c.retention, retentionChange{now.UnixMicro(), now.UnixMicro(), keeps})
}

// Retained notes that the last change of the retention was acknowledged by now: until then the previous retention may have applied.
func (h *History) Retained(category string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.mu.categories[category]
	c.retention[len(c.retention)-1].made = now.UnixMicro()
}

// changing bounds how long an acknowledged change of the retention may take to reach all processes.
const changing = 2 * time.Second

// hasExpired reports whether a message persisted at a time may be gone by now, under the present retention or a previous one.
func (c *categoryHistory) hasExpired(persisted, now int64) bool {
	for i, r := range c.retention {
		end := now
		if i+1 < len(c.retention) {
			end = min(end, c.retention[i+1].made+changing.Microseconds())
		}
		if r.from <= now && persisted+r.keeps.Microseconds() <= end {
			return true
		}
	}
	return false
}

// Agree compares trails of readers that must get the same order: of any two, one must be a prefix of the other.
func (h *History) Agree(trails ...*Trail) *Report {
	report := new(Report)
	var longest []readMessage
	var of *Trail
	for _, t := range trails {
		steps := t.Reading().seen
		if of == nil {
			longest, of = steps, t
			continue
		}
		for i := range min(len(steps), len(longest)) {
			if steps[i].position != longest[i].position {
				report.Violations = append(report.Violations, &Violation{Kind: Disagreement, Text: fmt.Sprintf("%s: message %d of %s is %s, of %s %s", t.category, i, of.name, longest[i].describePosition(), t.name, steps[i].describePosition())})
				break
			}
		}
		if len(steps) > len(longest) {
			longest, of = steps, t
		}
	}
	return report
}
