package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Kind is what is wrong; see the package's documentation.
type Kind string

// Kinds of violations.
const (
	Lost           Kind = "lost"
	VisibleFailure Kind = "visible failure"
	Duplicate      Kind = "duplicate"
	Gap            Kind = "gap"
	Reordered      Kind = "reordered"
	Places         Kind = "places"
	Changed        Kind = "changed"
	WrongBytes     Kind = "wrong bytes"
	TornBatch      Kind = "torn batch"
	Unresolved     Kind = "unresolved"
	Owed           Kind = "taken while owed"
	WrongGap       Kind = "wrong gap"
	Repeated       Kind = "repeated"
	Skipped        Kind = "skipped"
	Disagreement   Kind = "disagreement"
	OutOfWindow    Kind = "out of window"
)

// Invariant is the number of the invariant in the system's design that a kind violates.
func (k Kind) Invariant() int {
	switch k {
	case Lost:
		return 1
	case VisibleFailure, Duplicate, Gap, Reordered:
		return 2
	case Places, Changed:
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

// Violation is one thing that must not be.
type Violation struct {
	Kind Kind
	Text string
}

// Error says which invariant does not hold, and where.
func (v *Violation) Error() string {
	return fmt.Sprintf("invariant %d, %s: %s", v.Kind.Invariant(), v.Kind, v.Text)
}

// Report is what a check found.
type Report struct {
	// Violations in the order in which they were found.
	Violations []*Violation
	// Written messages, of which so many were Acked at any level and so many Failed for certain; what is left has no known outcome.
	Written, Acked, Failed int
	// Seen is how many messages the reading has, Copies how many of them were there before.
	Seen, Copies int
	// WeakLost are messages that were acknowledged below the level that has to last, and are not there.
	WeakLost int
	// Missed are messages of which a consumer was told that they are gone.
	Missed int
}

// maxShown bounds how many violations an error shows.
const maxShown = 20

// Err is nil when there is no violation.
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

// checker is one run of Check. The history's mutex is held.
type checker struct {
	c      *category
	r      *Reading
	report *Report

	count     map[*message]int
	persisted map[*message]int64 // of the first copy
}

// Check compares a reading with what writers know. Acknowledgements at a level of at least lasting must be there.
func (h *History) Check(r *Reading, lasting Level) *Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := &checker{c: h.mu.categories[r.category], r: r, report: new(Report), count: map[*message]int{}, persisted: map[*message]int64{}}
	messages := k.contents()
	k.places()
	k.stable()
	k.batches(messages)
	k.ends(messages)
	if k.c.guarantees.ExactlyOnce {
		k.writersOrder(messages)
	} else {
		k.realTimeOrder()
	}
	k.outcomes(lasting)
	return k.report
}

func (k *checker) violation(kind Kind, format string, args ...any) {
	k.report.Violations = append(k.report.Violations, &Violation{Kind: kind, Text: k.r.category + ": " + fmt.Sprintf(format, args...)})
}

func (s *seen) at() string {
	if s.place.lsn == 0 {
		return "a row"
	}
	return fmt.Sprintf("shard %d/%d/%d, LSN %d, message %d", s.place.shard>>32, s.place.shard>>16&0xffff, s.place.shard&0xffff, s.place.lsn, s.place.index)
}

// contents looks at each message for itself, and returns what each of the reading's is; nil when it is none that was written.
func (k *checker) contents() []*message {
	found := make([]*message, len(k.r.seen))
	k.report.Seen = len(k.r.seen)
	for i := range k.r.seen {
		s := &k.r.seen[i]
		m := k.c.messages[s.content.id]
		switch {
		case s.err != nil:
			k.violation(WrongBytes, "%s: %v", s.at(), s.err)
			continue
		case m == nil:
			k.violation(WrongBytes, "%s: %v was never written", s.at(), s.content.id)
			continue
		case m.digest != s.content.digest:
			k.violation(WrongBytes, "%s: the payload of %v is not what was written", s.at(), s.content.id)
			continue
		case s.place.lsn != 0 && m.shard != s.logical:
			k.violation(WrongBytes, "%s: %v was written to the logical shard %d, and is in %d", s.at(), m.id, m.shard, s.logical)
		}
		found[i] = m
		k.count[m]++
		if k.count[m] == 1 {
			k.persisted[m] = s.persisted
			continue
		}
		k.report.Copies++
		if k.c.guarantees.ExactlyOnce {
			k.violation(Duplicate, "%s: %v is there for the %d. time", s.at(), m.id, k.count[m])
		}
	}
	return found
}

// places must be dense in each physical shard, from the first LSN on.
func (k *checker) places() {
	last := map[uint64]place{}
	for i := range k.r.seen {
		s := &k.r.seen[i]
		if s.place.lsn == 0 {
			continue
		}
		before := last[s.place.shard] // before the first one: LSN 0, which has no messages
		next := s.place.lsn == before.lsn && before.lsn != 0 && s.place.index == before.index+1
		if !next && (s.place.lsn != before.lsn+1 || s.place.index != 0) {
			k.violation(Places, "%s stands behind LSN %d, message %d", s.at(), before.lsn, before.index)
		}
		last[s.place.shard] = s.place
	}
}

// stable compares with what was read before.
func (k *checker) stable() {
	now := make(map[place]content, len(k.r.seen))
	for i := range k.r.seen {
		s := &k.r.seen[i]
		if s.place.lsn == 0 {
			continue
		}
		now[s.place] = s.content
		if before, ok := k.c.places[s.place]; ok && before != s.content {
			k.violation(Changed, "%s holds %v, another reader saw %v", s.at(), s.content.id, before.id)
		}
	}
	for p, before := range k.c.places {
		if _, ok := now[p]; !ok {
			gone := seen{place: p}
			k.violation(Changed, "%s held %v, and is gone", gone.at(), before.id)
		}
	}
	k.c.places = now
}

// batches must be whole and contiguous in the stream, each copy of them.
func (k *checker) batches(messages []*message) {
	var before *message
	for i, m := range messages {
		open := before != nil && before.batch != 0 && before.place < before.size-1
		follows := m != nil && before != nil && m.batch != 0 && m.batch == before.batch && m.place == before.place+1
		switch {
		case open && !follows:
			k.violation(TornBatch, "%s: something else follows message %d of %d of the batch of %v", k.r.seen[i].at(), before.place+1, before.size, before.id)
		case m != nil && m.batch != 0 && m.place > 0 && !follows:
			k.violation(TornBatch, "%s: message %d of %d of a batch, %v, stands without those before it", k.r.seen[i].at(), m.place+1, m.size, m.id)
		}
		before = m
	}
}

// ends: the last batch is whole, where what was read goes to the end.
func (k *checker) ends(messages []*message) {
	if len(messages) == 0 {
		return
	}
	before := messages[len(messages)-1]
	if before != nil && before.batch != 0 && before.place < before.size-1 {
		k.violation(TornBatch, "the category ends behind message %d of %d of the batch of %v", before.place+1, before.size, before.id)
	}
}

// stream is what a writer writes to one shard.
type stream struct {
	writer string
	shard  uint32
}

// writersOrder: each writer's messages are in its order, the first copies of them.
func (k *checker) writersOrder(messages []*message) {
	last := map[stream]*message{}
	told := map[*message]bool{}
	for i, m := range messages {
		if m == nil || told[m] {
			continue
		}
		told[m] = true
		of := stream{m.id.Writer, m.shard}
		if before := last[of]; before != nil && before.id.Index >= m.id.Index {
			k.violation(Reordered, "%s: %v stands behind %v", k.r.seen[i].at(), m.id, before.id)
		}
		last[of] = m
	}
	if !k.c.guarantees.NoGivingUp {
		return
	}
	for _, m := range k.sorted() {
		end := last[stream{m.id.Writer, m.shard}]
		if end != nil && m.id.Index < end.id.Index && k.count[m] == 0 {
			k.violation(Gap, "%v is missing, %v is there", m.id, end.id)
		}
	}
}

// realTimeOrder: who began after somebody else's message was committed is not persisted before it.
func (k *checker) realTimeOrder() {
	committed := make([]*message, 0, len(k.persisted))
	invoked := make([]*message, 0, len(k.persisted))
	for m, persisted := range k.persisted {
		if persisted == 0 {
			continue
		}
		invoked = append(invoked, m)
		if m.committed != 0 {
			committed = append(committed, m)
		}
	}
	slices.SortFunc(committed, func(a, b *message) int { return cmp.Compare(a.committed, b.committed) })
	slices.SortFunc(invoked, func(a, b *message) int {
		return cmp.Or(cmp.Compare(a.invoked, b.invoked), cmp.Compare(a.id.Index, b.id.Index))
	})
	var latest *message // of those that were committed when m began, the one with the latest persisted time
	for _, m := range invoked {
		for len(committed) > 0 && committed[0].committed < m.invoked {
			if latest == nil || k.persisted[committed[0]] > k.persisted[latest] {
				latest = committed[0]
			}
			committed = committed[1:]
		}
		if latest != nil && k.persisted[m] < k.persisted[latest] {
			k.violation(Reordered, "%v was written after %v was committed, and has an older persisted time", m.id, latest.id)
		}
	}
}

// outcomes compares what is there with what writers were told.
func (k *checker) outcomes(lasting Level) {
	for _, m := range k.sorted() {
		k.report.Written++
		failed := m.failed == m.attempts
		if failed {
			k.report.Failed++
		}
		if len(m.acked) > 0 {
			k.report.Acked++
		}
		if failed && k.count[m] > 0 {
			k.violation(VisibleFailure, "%v failed for certain, and is there", m.id)
		}
		if k.count[m] > 0 || failed {
			continue
		}
		weak, lost := false, false
		for level, when := range m.acked {
			switch {
			case when > k.r.began:
			case level >= lasting:
				k.violation(Lost, "%v was acknowledged at level %d, and is not there", m.id, level)
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

// sorted are the category's messages, so that what is found does not depend on a map's order.
func (k *checker) sorted() []*message {
	all := make([]*message, 0, len(k.c.messages))
	for _, m := range k.c.messages {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *message) int {
		return cmp.Or(cmp.Compare(a.id.Writer, b.id.Writer), cmp.Compare(a.id.Index, b.id.Index))
	})
	return all
}
