package delivery

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
)

// Bounds of a [Ledger].
const (
	// MaxKeys bounds the sums, about 200 bytes each, between two reports. What comes beside them is summed by category and minute, and beyond
	// twice as many counted as untold.
	MaxKeys = 32_768
	// maxRows bounds the rows of a frame.
	maxRows = 1000
	// holdAgain is how often a ledger repeats what is held although it has not changed: a reader of the last hour looks that far back.
	holdAgain = 5 * time.Minute
)

// Key is what is counted together.
type Key struct {
	Category string
	// Producer is the id in the frames; 0 for none, or if it is not known.
	Producer uint64
	Minute   int64
	// Reader is who was given the messages.
	Reader string
	// Reason is why messages were dropped; a sum with a reason has no other counts.
	Reason string
}

func compareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.Category, b.Category), cmp.Compare(a.Minute, b.Minute), cmp.Compare(a.Producer, b.Producer),
		strings.Compare(a.Reader, b.Reader), strings.Compare(a.Reason, b.Reason))
}

// Pending is a frame of rows that must be sent until it is known to be stored. Its bytes do not change.
type Pending struct {
	Frame []byte
	// Messages is what its rows count, about: for metrics of what could not be told.
	Messages int64
}

// Ledger sums what one reporter counts, and makes rows of it. It does no I/O and is not safe for concurrent use.
type Ledger struct {
	hop, run, host, agent string

	number uint64 // of the newest row
	open   map[Key]*Counts
	made   []*Pending
	// held is what rows have said is held by category, heldAt when all of it was last said.
	held   map[string]int64
	heldAt time.Time
	// told counts frames that were stored, untold messages that no row counts.
	told, untold int64
}

// NewLedger returns an empty ledger of a hop: [Library], [Agent], [Cell] or [Reader]. Its rows bear a name that is drawn.
func NewLedger(hop, host, agent string, random *entropy.Source) *Ledger {
	return &Ledger{
		hop: hop, run: fmt.Sprintf("%016x", random.Uint64()), host: cutText(host), agent: cutText(agent),
		open: make(map[Key]*Counts), held: make(map[string]int64),
	}
}

// cutText cuts a text at MaxText bytes, and not within a character.
func cutText(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	return strings.ToValidUTF8(s, "")
}

// Add adds to a sum. Rows themselves are not counted.
func (l *Ledger) Add(key Key, c Counts) {
	if key.Category == Category || c == (Counts{}) {
		return
	}
	sum := l.open[key]
	if sum == nil {
		if len(l.open) >= MaxKeys {
			key.Producer = 0
			sum = l.open[key]
		}
		if sum == nil && len(l.open) >= 2*MaxKeys {
			l.untold += countMessages(c)
			return
		}
		if sum == nil {
			sum = new(Counts)
			l.open[key] = sum
		}
	}
	*sum = sum.Plus(c)
}

// countMessages is how many messages counts are about.
func countMessages(c Counts) int64 {
	return max(c.Produced, 0) + c.Passed + c.Stored + c.Sampled + c.Dropped + c.Delivered
}

// Idle reports whether there is nothing to report.
func (l *Ledger) Idle() bool { return len(l.open)+len(l.made) == 0 }

// Counts returns the number of frames that were stored, and the number of messages that no row counts.
func (l *Ledger) Counts() (told, untold int64) { return l.told, l.untold }

// Reports returns the pending frames. If there are none it makes them, of all sums; held is what the reporter has of each category, nil if it
// does not say. So an unavailable cell makes sums grow, not frames.
func (l *Ledger) Reports(now time.Time, held map[string]int64) []*Pending {
	if len(l.made) > 0 {
		return slices.Clone(l.made)
	}
	rows := l.openRows(now, l.changedHolds(now, held))
	clear(l.open)
	for _, r := range rows {
		l.number++
		r.ID = fmt.Sprintf("%s/%d", l.run, l.number)
	}
	l.made = l.appendFrames(nil, now, rows)
	return slices.Clone(l.made)
}

// changedHolds returns what is held of the categories of which it was not said yet, and notes that it is.
func (l *Ledger) changedHolds(now time.Time, held map[string]int64) map[string]int64 {
	if held == nil {
		return nil
	}
	again := now.Sub(l.heldAt) >= holdAgain
	if again {
		l.heldAt = now
	}
	changed := make(map[string]int64)
	for category, n := range held {
		if last, ok := l.held[category]; category != Category && (!ok && n > 0 || ok && (last != n || again)) {
			changed[category], l.held[category] = n, n
		}
	}
	for category := range l.held {
		if held[category] == 0 {
			changed[category] = 0
			delete(l.held, category)
		}
	}
	return changed
}

// openRows returns rows of all sums, and of what is held, without ids, in the order of their categories.
func (l *Ledger) openRows(now time.Time, held map[string]int64) []*timedRow {
	rows := make([]*timedRow, 0, len(l.open)+len(held))
	for _, key := range slices.SortedFunc(maps.Keys(l.open), compareKeys) {
		rows = append(rows, &timedRow{minute: key.Minute, Row: Row{
			Hop: l.hop, Host: l.host, Agent: l.agent, Category: key.Category, Producer: producerText(key.Producer), Reader: cutText(key.Reader),
			Reason: cutText(key.Reason), Counts: *l.open[key],
		}})
	}
	for _, category := range slices.Sorted(maps.Keys(held)) {
		rows = append(rows, &timedRow{minute: MinuteOf(now.UnixMicro()), Row: Row{
			Hop: l.hop, Host: l.host, Agent: l.agent, Category: category, Held: new(held[category]),
		}})
	}
	slices.SortStableFunc(rows, func(a, b *timedRow) int { return strings.Compare(a.Category, b.Category) })
	return rows
}

// appendFrames appends frames of rows that have ids. A frame is about one category: who may not write to that must not keep the others' rows
// from being stored.
func (l *Ledger) appendFrames(dst []*Pending, now time.Time, rows []*timedRow) []*Pending {
	for len(rows) > 0 {
		n := 1
		for n < min(len(rows), maxRows) && rows[n].Category == rows[0].Category {
			n++
		}
		messages := int64(0)
		for _, r := range rows[:n] {
			messages += countMessages(r.Counts)
		}
		if frame, err := appendFrame(nil, now, rows[:n]); err == nil {
			dst = append(dst, &Pending{Frame: frame, Messages: messages})
		} else {
			l.untold += messages // a time that no message can have
		}
		rows = rows[n:]
	}
	return dst
}

// AppendKept appends the frames of everything that is not known to be stored, for a file from which [Ledger.Restore] takes them after a restart.
// Pending frames are as they are sent. Rows of sums have numbers that the next reports will have: keep the file before frames are sent that were
// made since. What is held is in it as well, so that the next run says when it is not any more.
func (l *Ledger) AppendKept(dst []byte, now time.Time) []byte {
	for _, p := range l.made {
		dst = append(dst, p.Frame...)
	}
	rows, number := l.openRows(now, l.held), l.number
	for _, r := range rows {
		number++
		r.ID = fmt.Sprintf("%s/%d", l.run, number)
	}
	untold := l.untold
	for _, p := range l.appendFrames(nil, now, rows) {
		dst = append(dst, p.Frame...)
	}
	l.untold = untold // it is counted when they are made
	return dst
}

// ErrKept matches kept rows that are damaged. Those before the damage are restored.
var ErrKept = errors.New("delivery: damaged file of rows")

// maxKept bounds the frames that are restored.
const maxKept = 2 * MaxKeys

// Restore makes frames pending that an earlier run kept, and takes over what it said is held.
func (l *Ledger) Restore(kept []byte) error {
	for len(kept) > 0 {
		h, err := record.ParseHeader(kept)
		if err != nil || h.Len > len(kept) {
			return fmt.Errorf("%w: a frame is cut or damaged", ErrKept)
		}
		frame := bytes.Clone(kept[:h.Len])
		kept = kept[h.Len:]
		if _, err := record.Check(frame); err != nil {
			return fmt.Errorf("%w: %w", ErrKept, err)
		}
		p := &Pending{Frame: frame}
		err = RowsOf(frame, func(r *Row, _ int64) error {
			if p.Messages += countMessages(r.Counts); r.Held != nil && *r.Held > 0 {
				l.held[r.Category] = *r.Held
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%w: %w", ErrKept, err)
		}
		if len(l.made) >= maxKept {
			l.untold += p.Messages
			continue
		}
		l.made = append(l.made, p)
	}
	return nil
}

// Settle records the outcomes of frames. done has those that need not be sent again: true for stored, false for refused for good.
func (l *Ledger) Settle(done map[*Pending]bool) {
	left := l.made[:0]
	for _, p := range l.made {
		stored, ok := done[p]
		switch {
		case !ok:
			left = append(left, p)
		case stored:
			l.told++
		default:
			l.untold += p.Messages
		}
	}
	clear(l.made[len(left):])
	l.made = left
}
