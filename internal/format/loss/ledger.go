package loss

import (
	"fmt"
	"time"

	"scribe/internal/base/entropy"
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
	number  uint64 // of the newest report
	open    map[Key]*lossSum
	made    []*Pending
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
		r := Report{
			Reason: key.Reason, Messages: uint64(s.Messages), Frames: uint64(max(s.Frames, 0)), Bytes: uint64(max(s.Bytes, 0)),
			Since: s.since.UnixMicro(), Until: s.until.UnixMicro(), AllShards: key.AllShards, By: l.by, Run: l.run, Number: l.number,
		}
		f, err := AppendFrame(nil, key.Category, key.Shard, now.UnixMicro(), &r)
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
