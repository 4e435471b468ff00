package loss

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
)

// MaxSums bounds the sums (about 200 bytes each) and pending reports (700 bytes each) of a [Ledger].
const MaxSums = 4096

// Key identifies a sum of losses.
type Key struct {
	Category string
	Shard    uint32
	// AllShards says that the shard is unknown: the report goes to shard 0.
	AllShards bool
	Reason    string
}

// Amount is the amount of dropped data.
type Amount struct{ Frames, Bytes, Messages int64 }

// Pending is a report that must be sent until it is known to be stored. Its bytes do not change, so that a copy that was stored
// although its answer was lost can be recognized.
type Pending struct {
	Key
	Messages int64
	Frame    []byte
}

// Ledger sums the losses of one reporter, and makes reports of them. It does no I/O and is not safe for concurrent use.
type Ledger struct {
	by, run string
	// host and agent say where the reporter is, in at most MaxText bytes each.
	host, agent string
	number      uint64 // of the newest report
	open        map[Key]*lossSum
	made        []*Pending
	// told counts stored reports, untold the messages that no report will count.
	told, untold int64
}

type lossSum struct {
	Amount
	since, until time.Time
}

// NewLedger returns an empty ledger of a reporter: [ByAgent] or [ByProducer]. Its reports bear a name that is drawn.
func NewLedger(by string, random *entropy.Source) *Ledger {
	return &Ledger{by: by, run: fmt.Sprintf("%016x", random.Uint64()), open: make(map[Key]*lossSum)}
}

// NameReporter sets what reports say of where they come from: the host's name, and the agent's id. Longer texts are cut.
func (l *Ledger) NameReporter(host, agent string) {
	l.host, l.agent = cutText(host), cutText(agent)
}

// cutText cuts a text at MaxText bytes, and not within a character.
func cutText(s string) string {
	if len(s) > MaxText {
		s = strings.ToValidUTF8(s[:MaxText], "")
	}
	return s
}

// Add adds a loss between two times. Losses above MaxSums are only counted.
func (l *Ledger) Add(key Key, a Amount, since, until time.Time) {
	if a.Messages <= 0 {
		return
	}
	s := l.open[key]
	if s == nil {
		if len(l.open)+len(l.made) >= MaxSums {
			l.untold += a.Messages
			return
		}
		s = &lossSum{since: since}
		l.open[key] = s
	}
	s.Frames += a.Frames
	s.Bytes += a.Bytes
	s.Messages += a.Messages
	s.until = until
}

// AddFrame adds the loss of a frame. If the frame is a report itself, it adds the losses of the report.
func (l *Ledger) AddFrame(category, reason string, frame []byte, messages int64, now time.Time) {
	a := Amount{Frames: 1, Bytes: int64(len(frame)), Messages: messages}
	shard, r, is, err := inFrame(frame)
	switch {
	case err != nil:
		l.Add(Key{Category: category, AllShards: true, Reason: reason}, a, now, now)
	case is:
		a = Amount{Frames: int64(r.Frames), Bytes: int64(r.Bytes), Messages: int64(r.Messages)} //nolint:gosec // a report of ours
		l.Add(Key{Category: category, Shard: shard, AllShards: r.AllShards, Reason: r.Reason}, a, time.UnixMicro(r.Since), time.UnixMicro(r.Until))
	default:
		l.Add(Key{Category: category, Shard: shard, Reason: reason}, a, now, now)
	}
}

// Idle reports whether there are no losses to report.
func (l *Ledger) Idle() bool { return len(l.open)+len(l.made) == 0 }

// Counts returns the number of stored reports, and the number of messages that no report counts.
func (l *Ledger) Counts() (told, untold int64) { return l.told, l.untold }

// Reports makes reports of the sums, and returns the pending reports by category, including older ones. While a report of a sum
// is pending, further losses add to the next sum: an unavailable cell causes one report per sum, not one per failed attempt.
func (l *Ledger) Reports(now time.Time) map[string][]*Pending {
	waiting := make(map[Key]bool, len(l.made))
	for _, p := range l.made {
		waiting[p.Key] = true
	}
	for key, s := range l.open {
		if waiting[key] {
			continue
		}
		delete(l.open, key)
		l.number++
		f, err := l.appendReport(nil, key, s, l.number, now)
		if err != nil {
			l.untold += s.Messages // the name or shard is invalid: nothing of it can be stored
			continue
		}
		l.made = append(l.made, &Pending{Key: key, Messages: s.Messages, Frame: f})
	}
	out := make(map[string][]*Pending)
	for _, p := range l.made {
		out[p.Category] = append(out[p.Category], p)
	}
	return out
}

// appendReport appends the report of a sum.
func (l *Ledger) appendReport(dst []byte, key Key, s *lossSum, number uint64, now time.Time) ([]byte, error) {
	r := Report{
		Reason: key.Reason, Messages: uint64(s.Messages), Frames: uint64(max(s.Frames, 0)), Bytes: uint64(max(s.Bytes, 0)),
		Since: s.since.UnixMicro(), Until: s.until.UnixMicro(), AllShards: key.AllShards, By: l.by, Run: l.run, Number: number, Host: l.host, Agent: l.agent,
	}
	return AppendFrame(dst, key.Category, key.Shard, now.UnixMicro(), &r)
}

// AppendKept appends the reports of all losses that are not known to be stored, for a file from which [Ledger.Restore] takes them after a restart.
// Pending reports are as they are sent. A sum without a report gets one with a number above those of all reports that were made: keep the
// file before reports are sent that were made since, and the reports of a restarted process have no number twice.
func (l *Ledger) AppendKept(dst []byte, now time.Time) []byte {
	for _, p := range l.made {
		dst = append(dst, p.Frame...)
	}
	number := l.number
	for key, s := range l.open {
		number++
		if with, err := l.appendReport(dst, key, s, number, now); err == nil { // else nothing of it can be stored
			dst = with
		}
	}
	return dst
}

// ErrKept matches kept reports that are damaged. Those before the damage are restored.
var ErrKept = errors.New("loss: damaged file of reports")

// Restore makes reports pending that an earlier run kept. At most MaxSums are taken; the others' messages count as untold.
func (l *Ledger) Restore(kept []byte) error {
	for len(kept) > 0 {
		h, err := record.ParseHeader(kept)
		if err != nil || h.Len > len(kept) {
			return fmt.Errorf("%w: a report is cut or damaged", ErrKept)
		}
		frame := bytes.Clone(kept[:h.Len])
		kept = kept[h.Len:]
		if _, err := record.Check(frame); err != nil {
			return fmt.Errorf("%w: %w", ErrKept, err)
		}
		shard, r, is, err := inFrame(frame)
		if err != nil || !is {
			return fmt.Errorf("%w: a frame that is not a report", ErrKept)
		}
		messages := int64(min(r.Messages, math.MaxInt64))
		if len(l.made) >= MaxSums {
			l.untold += messages
			continue
		}
		key := Key{Category: h.CategoryName(), Shard: shard, AllShards: r.AllShards, Reason: r.Reason}
		l.made = append(l.made, &Pending{Key: key, Messages: messages, Frame: frame})
	}
	return nil
}

// Settle records the outcomes of reports. done has the reports that need not be sent again: true for stored, false for refused
// for good.
func (l *Ledger) Settle(done map[*Pending]bool) {
	left := l.made[:0]
	for _, p := range l.made {
		told, ok := done[p]
		switch {
		case !ok:
			left = append(left, p)
		case told:
			l.told++
		default:
			l.untold += p.Messages
		}
	}
	clear(l.made[len(left):])
	l.made = left
}
