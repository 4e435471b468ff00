package loss

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// MaxSums bounds what a [Ledger] keeps: sums, at about 200 bytes each, and reports that wait, at 700.
const MaxSums = 4096

// Key is what losses are summed by.
type Key struct {
	Category string
	Shard    uint32
	// AllShards says that the shard is not known: the report goes to shard 0.
	AllShards bool
	Reason    string
}

// Amount is how much was dropped.
type Amount struct{ Frames, Bytes, Messages int64 }

// Pending is a report that was made, and is to be sent until it is known to be stored. Its bytes stay as they are, so that one whose answer
// was lost can be told from another.
type Pending struct {
	Key
	Messages int64
	Frame    []byte
}

// Ledger sums what one reporter drops, and makes reports of it. It does no I/O and is not safe for concurrent use.
type Ledger struct {
	by, run string
	number  uint64 // of the newest report
	open    map[Key]*lossSum
	made    []*Pending
	// told counts reports that are stored, untold messages that no report will count.
	told, untold int64
}

type lossSum struct {
	Amount
	since, until time.Time
}

// NewLedger returns an empty ledger of a reporter: [ByAgent] or [ByProducer].
func NewLedger(by string) *Ledger {
	return &Ledger{by: by, run: fmt.Sprintf("%016x", rand.Uint64()), open: make(map[Key]*lossSum)}
}

// Add notes that something was dropped between two times. What is over MaxSums is only counted.
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

// AddFrame notes that a frame was dropped whose bytes are at hand. If it is a report itself, what it says is noted.
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

// Idle reports whether there is nothing to tell.
func (l *Ledger) Idle() bool { return len(l.open)+len(l.made) == 0 }

// Counts are the reports that are stored, and the messages of which nobody is told.
func (l *Ledger) Counts() (told, untold int64) { return l.told, l.untold }

// Reports makes reports of the sums, and returns those that are to be sent by category, older ones included. A sum of which an older
// report waits goes on growing: while nothing is taken there is one report of each, not one for every time that it could not be sent.
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
			l.untold += s.Messages // a name or a shard that is none: nothing of it can be stored
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

// Settle takes what became of reports: done are those that need not be sent again, by whether they are stored or refused for good.
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
