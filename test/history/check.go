package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Kind is the kind of a violation.
type Kind string

// Kinds of violations. Those from [Unresolved] on are of trails, which are also checked for [Changed], [WrongBytes] and [TornBatch],
// compared with what other readers saw.
const (
	// Lost: a message that was acknowledged before the reading began, at a level that must last, is missing.
	Lost Kind = "lost"
	// VisibleFailure: a message is readable although every attempt to write it definitely failed.
	VisibleFailure Kind = "visible failure"
	// Duplicate: a message occurs twice in an exactly_once category.
	Duplicate Kind = "duplicate"
	// Gap: in such a category, if its writers never give up, a message is missing before a later one of its writer.
	Gap Kind = "gap"
	// Reordered: in such a category a writer's messages (of a key, if it places messages by key) are not in its order; in any other one,
	// a writer's committed message of a key stands behind a later one, or a message has an older persisted time
	// than one that was acknowledged as committed before it was first written.
	Reordered Kind = "reordered"
	// Positions: the positions in a log, (LSN, index), are not dense.
	Positions Kind = "positions"
	// Changed: a position holds another message than when it was read before, or none.
	Changed Kind = "changed"
	// WrongBytes: a payload is not one that was written there.
	WrongBytes Kind = "wrong bytes"
	// TornBatch: an atomic batch is not whole, or not contiguous in the stream.
	TornBatch Kind = "torn batch"
	// Misplaced: a message is in a logical shard in which readers of its key do not look.
	Misplaced Kind = "misplaced"
	// Unresolved: a pointer that was not trimmed refers to no payload.
	Unresolved Kind = "unresolved"
	// Owed: a missing message had not expired under any retention that the category had ([History.Retain]).
	Owed Kind = "taken while owed"
	// WrongGap: a gap does not begin at the consumer's position.
	WrongGap Kind = "wrong gap"
	// Repeated, Skipped: over all its lives a consumer got a message twice, or missed one without a gap.
	Repeated Kind = "repeated"
	Skipped  Kind = "skipped"
	// Disagreement: two readers of a repeatable category got different orders ([History.Agree]).
	Disagreement Kind = "disagreement"
	// OutOfWindow: a message is older than a previous one by more than the consumer's window.
	OutOfWindow Kind = "out of window"
)

// Invariant returns the number of the invariant, in the system's design, that a kind violates.
func (k Kind) Invariant() int {
	switch k {
	case Lost:
		return 1
	case VisibleFailure, Duplicate, Gap, Reordered, Misplaced:
		return 2
	case Positions, Changed:
		return 3
	case WrongBytes:
		return 4
	case Unresolved:
		return 8
	case Owed, WrongGap:
		return 9
	case Repeated, Skipped, Disagreement:
		return 12
	case OutOfWindow:
		return 13
	default:
		return 14
	}
}

// Violation is one violated invariant.
type Violation struct {
	Kind Kind
	Text string
}

// Error says which invariant does not hold, and where.
func (v *Violation) Error() string {
	return fmt.Sprintf("invariant %d, %s: %s", v.Kind.Invariant(), v.Kind, v.Text)
}

// Report is the result of a check.
type Report struct {
	// Violations in the order in which they were found.
	Violations []*Violation
	// Written is the number of written messages. Acked of them were acknowledged at any level, Failed of them definitely failed; the
	// others have an unknown outcome.
	Written, Acked, Failed int
	// Seen is the number of messages in the reading, Copies how many of them are repetitions of earlier ones.
	Seen, Copies int
	// WeakLost is the number of missing messages that were acknowledged below the level that must last.
	WeakLost int
	// Missed is the number of messages that gaps told a consumer are gone.
	Missed int
}

// maxShown bounds how many violations an error shows.
const maxShown = 20

// Err returns an error that lists the violations, or nil if there are none.
func (r *Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	errs := make([]error, 0, maxShown+1)
	for _, v := range r.Violations[:min(len(r.Violations), maxShown)] {
		errs = append(errs, v)
	}
	if more := len(r.Violations) - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more violations", more))
	}
	return errors.Join(errs...)
}

// historyChecker is one run of Check. The history's mutex is held.
type historyChecker struct {
	c      *categoryHistory
	r      *Reading
	report *Report
	skew   int64

	count     map[*writtenMessage]int
	persisted map[*writtenMessage]int64 // of the oldest copy
}

// Check compares a reading with what writers know. Messages acknowledged at the level lasting or above must be in it.
func (h *History) Check(r *Reading, lasting Level) *Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := &historyChecker{c: h.mu.categories[r.category], r: r, report: new(Report), count: map[*writtenMessage]int{}, persisted: map[*writtenMessage]int64{}}
	messages := k.checkContents()
	k.checkPositions()
	k.checkStability()
	k.checkBatches(messages)
	k.checkEnds(messages)
	if k.c.guarantees.ExactlyOnce {
		k.checkWriterOrder(messages)
	} else {
		k.checkRealTimeOrder()
		k.checkKeyOrder(messages)
	}
	k.checkOutcomes(lasting)
	return k.report
}

func (k *historyChecker) addViolation(kind Kind, format string, args ...any) {
	k.report.Violations = append(k.report.Violations, &Violation{Kind: kind, Text: k.r.category + ": " + fmt.Sprintf(format, args...)})
}

func (s *readMessage) describePosition() string {
	if s.position.lsn == 0 {
		return "a row"
	}
	return fmt.Sprintf("shard %d/%d/%d, LSN %d, message %d", s.position.shard>>32, s.position.shard>>16&0xffff, s.position.shard&0xffff, s.position.lsn, s.position.index)
}

// checkContents checks each message by itself, and returns the written message for each one of the reading; nil if it was never written.
func (k *historyChecker) checkContents() []*writtenMessage {
	found := make([]*writtenMessage, len(k.r.seen))
	k.report.Seen = len(k.r.seen)
	for i := range k.r.seen {
		s := &k.r.seen[i]
		m := k.c.messages[s.content.id]
		switch {
		case s.err != nil:
			k.addViolation(WrongBytes, "%s: %v", s.describePosition(), s.err)
			continue
		case m == nil:
			k.addViolation(WrongBytes, "%s: %v was never written", s.describePosition(), s.content.id)
			continue
		case m.digest != s.content.digest:
			k.addViolation(WrongBytes, "%s: the payload of %v is not what was written", s.describePosition(), s.content.id)
			continue
		case k.c.guarantees.ByKey != nil:
			if s.position.lsn != 0 && !k.c.guarantees.ByKey(m.key, s.logical) {
				k.addViolation(Misplaced, "%s: %v, of key %s, is in the logical shard %d, where no layout puts it", s.describePosition(), m.id, m.key, s.logical)
			}
		case s.position.lsn != 0 && m.shard != s.logical:
			k.addViolation(WrongBytes, "%s: %v was written to the logical shard %d, and is in %d", s.describePosition(), m.id, m.shard, s.logical)
		}
		found[i] = m
		k.count[m]++
		if k.count[m] == 1 {
			k.persisted[m] = s.persisted
			continue
		}
		k.persisted[m] = min(k.persisted[m], s.persisted)
		k.report.Copies++
		if k.c.guarantees.ExactlyOnce {
			k.addViolation(Duplicate, "%s: %v is there for the %d. time", s.describePosition(), m.id, k.count[m])
		}
	}
	return found
}

// checkPositions checks that positions are dense in each physical shard, from the first LSN on.
func (k *historyChecker) checkPositions() {
	last := map[uint64]position{}
	for i := range k.r.seen {
		s := &k.r.seen[i]
		if s.position.lsn == 0 {
			continue
		}
		before := last[s.position.shard] // before the first one: LSN 0, which has no messages
		next := s.position.lsn == before.lsn && before.lsn != 0 && s.position.index == before.index+1
		if !next && (s.position.lsn != before.lsn+1 && (before.lsn != 0 || !k.c.beginsAt(s.position)) || s.position.index != 0) {
			k.addViolation(Positions, "%s stands behind LSN %d, message %d", s.describePosition(), before.lsn, before.index)
		}
		last[s.position.shard] = s.position
	}
}

// beginsAt reports whether a log may begin at a position: at the origin of a recovery.
func (c *categoryHistory) beginsAt(at position) bool { return c.origin != 0 && at.lsn >= c.origin }

// checkStability compares the reading with the previous one.
func (k *historyChecker) checkStability() {
	now := make(map[position]messageDigest, len(k.r.seen))
	for i := range k.r.seen {
		s := &k.r.seen[i]
		if s.position.lsn == 0 {
			continue
		}
		now[s.position] = s.content
		if before, ok := k.c.positions[s.position]; ok && before != s.content {
			k.addViolation(Changed, "%s holds %v, another reader saw %v", s.describePosition(), s.content.id, before.id)
		}
	}
	for p, before := range k.c.positions {
		if _, ok := now[p]; !ok {
			gone := readMessage{position: p}
			k.addViolation(Changed, "%s held %v, and is gone", gone.describePosition(), before.id)
		}
	}
	k.c.positions = now
}

// inOpenBatch reports whether more messages of m's batch must follow it.
func (m *writtenMessage) inOpenBatch() bool {
	return m != nil && m.batch != 0 && m.batchIndex < m.batchSize-1
}

// checkBatches checks that each copy of an atomic batch is whole and contiguous in the stream.
func (k *historyChecker) checkBatches(messages []*writtenMessage) {
	var before *writtenMessage
	for i, m := range messages {
		follows := m != nil && before != nil && m.batch != 0 && m.batch == before.batch && m.batchIndex == before.batchIndex+1
		switch {
		case before.inOpenBatch() && !follows:
			k.addViolation(TornBatch, "%s: something else follows message %d of %d of the batch of %v", k.r.seen[i].describePosition(), before.batchIndex+1, before.batchSize, before.id)
		case m != nil && m.batch != 0 && m.batchIndex > 0 && !follows:
			k.addViolation(TornBatch, "%s: message %d of %d of a batch, %v, stands without those before it", k.r.seen[i].describePosition(), m.batchIndex+1, m.batchSize, m.id)
		}
		before = m
	}
}

// checkEnds checks that the last batch is whole, if the reading goes to the end.
func (k *historyChecker) checkEnds(messages []*writtenMessage) {
	if len(messages) == 0 {
		return
	}
	before := messages[len(messages)-1]
	if before.inOpenBatch() {
		k.addViolation(TornBatch, "the category ends after message %d of %d of the batch of %v", before.batchIndex+1, before.batchSize, before.id)
	}
}

// stream identifies the messages that one writer writes to one shard, or with one key.
type stream struct {
	writer string
	shard  uint32
	key    string
}

func (m *writtenMessage) stream() stream { return stream{m.id.Writer, m.shard, m.key} }

// checkKeyOrder checks that no message that was acknowledged as committed stands behind a later one of its writer and key; the first
// copies count. What has another outcome may have been stored by an attempt that its writer had given up.
func (k *historyChecker) checkKeyOrder(messages []*writtenMessage) {
	if k.c.guarantees.ByKey == nil {
		return
	}
	last := map[stream]int{} // in messages
	told := map[*writtenMessage]bool{}
	for i, m := range messages {
		if m == nil || told[m] {
			continue
		}
		told[m] = true
		at, known := last[m.stream()]
		switch {
		case !known || messages[at].id.Index < m.id.Index:
			last[m.stream()] = i
		case m.committed != 0:
			s, before := &k.r.seen[i], &k.r.seen[at]
			k.addViolation(Reordered, "%s: %v, of key %s, stands behind %v (%s), persisted %v after it", s.describePosition(), m.id, m.key, messages[at].id,
				before.describePosition(), time.Duration(s.persisted-before.persisted)*time.Microsecond)
		}
	}
}

// checkWriterOrder checks that the first copies of each writer's messages are in the writer's order.
func (k *historyChecker) checkWriterOrder(messages []*writtenMessage) {
	last := map[stream]*writtenMessage{}
	told := map[*writtenMessage]bool{}
	for i, m := range messages {
		if m == nil || told[m] {
			continue
		}
		told[m] = true
		of := m.stream()
		if before := last[of]; before != nil && before.id.Index >= m.id.Index {
			k.addViolation(Reordered, "%s: %v stands behind %v", k.r.seen[i].describePosition(), m.id, before.id)
		}
		last[of] = m
	}
	if !k.c.guarantees.NoGivingUp {
		return
	}
	for _, m := range k.sortMessages() {
		end := last[m.stream()]
		if end != nil && m.id.Index < end.id.Index && k.count[m] == 0 {
			k.addViolation(Gap, "%v is missing, %v is there", m.id, end.id)
		}
	}
}

// checkRealTimeOrder checks that a message first written after another was committed is not persisted before it.
func (k *historyChecker) checkRealTimeOrder() {
	committed := make([]*writtenMessage, 0, len(k.persisted))
	invoked := make([]*writtenMessage, 0, len(k.persisted))
	for m, persisted := range k.persisted {
		if persisted == 0 {
			continue
		}
		invoked = append(invoked, m)
		if m.committed != 0 {
			committed = append(committed, m)
		}
	}
	slices.SortFunc(committed, func(a, b *writtenMessage) int { return cmp.Compare(a.committed, b.committed) })
	slices.SortFunc(invoked, func(a, b *writtenMessage) int {
		return cmp.Or(cmp.Compare(a.invoked, b.invoked), cmp.Compare(a.id.Index, b.id.Index))
	})
	var latest *writtenMessage // of those that were committed when m began, the one with the latest persisted time
	for _, m := range invoked {
		for len(committed) > 0 && committed[0].committed < m.invoked {
			if latest == nil || k.persisted[committed[0]] > k.persisted[latest] {
				latest = committed[0]
			}
			committed = committed[1:]
		}
		if latest != nil && k.persisted[m] < k.persisted[latest] {
			k.addViolation(Reordered, "%v was written after %v was committed, and has an older persisted time", m.id, latest.id)
		}
	}
}

// checkOutcomes compares the readable messages with the outcomes that writers were told.
func (k *historyChecker) checkOutcomes(lasting Level) {
	for _, m := range k.sortMessages() {
		k.report.Written++
		failed := m.failed == m.attempts
		if failed {
			k.report.Failed++
		}
		if len(m.acked) > 0 {
			k.report.Acked++
		}
		if failed && k.count[m] > 0 && !m.uncertain {
			k.addViolation(VisibleFailure, "%v failed for certain, and is there", m.id)
		}
		if k.count[m] > 0 || failed {
			continue
		}
		weak, lost := false, false
		for level, when := range m.acked {
			switch {
			case when > k.r.began:
			case level >= lasting:
				k.addViolation(Lost, "%v was acknowledged at level %d, and is not there", m.id, level)
				lost = true
			default:
				weak = true
			}
		}
		if weak && !lost {
			k.report.WeakLost++
		}
	}
}

// sortMessages returns the category's messages in a fixed order, so that a report does not depend on a map's order.
func (k *historyChecker) sortMessages() []*writtenMessage {
	return slices.SortedFunc(maps.Values(k.c.messages), func(a, b *writtenMessage) int {
		return cmp.Or(cmp.Compare(a.id.Writer, b.id.Writer), cmp.Compare(a.id.Index, b.id.Index))
	})
}
