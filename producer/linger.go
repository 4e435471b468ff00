package producer

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"

	"scribe/internal/format/placement"
)

// MaxLinger is the longest linger, of a category or of [WithMaxLinger].
const MaxLinger = 5 * time.Minute

// lingerRate is the number of small frames a second that lingers are chosen for.
const lingerRate = 2000

// enoughBytes is the size from which a frame does not linger long: what it costs beside its bytes counts for little then. It takes memory
// from others, and bytes that were written long ago have left the processor's caches.
const enoughBytes = 64 << 10

// departures is the time between the moments at which frames leave that linger for longer. What leaves at the same moment goes in few
// requests, so that it arrives within a short time from all hosts, and meets. It divides DefaultMaxLinger.
const departures = DefaultMaxLinger / 32

// manyDepartures is how many departures a linger must have for what lingers, and for full frames beside it, to leave at no other time.
const manyDepartures = 8

// lingerPlan decides how long frames linger.
//
// Frames of many streams that all linger shortly are small, and a frame costs all servers about as much as a large one. So the linger grows
// with the number of streams. Producers of all hosts end the lingers of a stream at the same times of the wall clock: then their frames
// meet in one payload at the batcher, which needs one pointer. The times of streams are spread evenly.
type lingerPlan struct {
	base, longest time.Duration
	// limit bounds also the linger of a category, so that frames do not reach their delivery timeout.
	limit time.Duration

	// departed is the latest moment at which a frame that lingers for manyDepartures or longer was opened, in Unix nanoseconds.
	departed atomic.Int64
	// Periods last for the longest linger. period is the number of the current one, active counts the streams that opened a frame in it,
	// and before those of the previous one.
	period         atomic.Int64
	active, before atomic.Int64
}

func (l *lingerPlan) setDurations(cfg *producerConfig) {
	l.base, l.longest = cfg.linger, cfg.maxLinger
	if l.limit = cfg.deliveryTimeout / 2; l.limit > 0 {
		l.longest = min(l.longest, l.limit)
	}
}

// phaseOf returns a number that all producers give a shard.
func phaseOf(shard Shard) uint64 {
	name := make([]byte, 0, 128)
	return placement.Hash(binary.LittleEndian.AppendUint32(append(name, shard.Category...), shard.Number))
}

// endOf returns when a frame that is opened is due. The stripe's mutex is held.
func (l *lingerPlan) endOf(s *shardStream, f *outFrame) time.Time {
	linger := l.base
	if f.ack == AckCommitted {
		linger = max(linger, l.lingerOf(s, f.taken))
	}
	if s.lingersLong = linger > l.base; !s.lingersLong {
		return f.taken.Add(linger)
	}
	phase := s.phase % uint64(linger)
	if linger >= departures {
		phase -= phase % uint64(departures)
	}
	if linger >= manyDepartures*departures {
		l.departed.Store(f.taken.UnixNano())
	}
	at := uint64(f.taken.UnixNano()) - phase
	return f.taken.Add(linger - time.Duration(at%uint64(linger)))
}

// lingerOf returns how long a frame of a stream may linger if nobody waits for it.
func (l *lingerPlan) lingerOf(s *shardStream, now time.Time) time.Duration {
	if s.category != nil {
		if own := time.Duration(s.category.linger.Load()); own >= 0 {
			if l.limit > 0 {
				own = min(own, l.limit)
			}
			return own
		}
	}
	if l.longest <= l.base {
		return l.base
	}
	l.countActive(s, now)
	return l.planned()
}

// planned returns the linger of frames of a category without one of its own.
func (l *lingerPlan) planned() time.Duration {
	if l.longest <= l.base {
		return l.base
	}
	wanted := time.Duration(max(l.active.Load(), l.before.Load())) * time.Second / lingerRate
	if wanted <= l.base {
		return l.base
	}
	// Of several producers with different numbers of streams, the lingers of one end when those of the others do.
	if ratio := uint64(l.longest / min(wanted, l.longest)); ratio > 1 {
		return l.longest >> (bits.Len64(ratio) - 1)
	}
	return l.longest
}

// nextDeparture returns when what lingered leaves next; the zero time if it leaves as it comes, since it doesn't linger for long.
func (l *lingerPlan) nextDeparture(now time.Time) time.Time {
	if now.UnixNano()-l.departed.Load() > int64(manyDepartures*departures) {
		return time.Time{}
	}
	const after = 2 * time.Millisecond // when the frames that are due have been found
	gone := time.Duration((now.UnixNano() - int64(after)) % int64(departures))
	return now.Add(departures - gone)
}

// countActive counts a stream that opens a frame.
func (l *lingerPlan) countActive(s *shardStream, now time.Time) {
	period := now.UnixNano() / int64(l.longest)
	if old := l.period.Load(); period != old && l.period.CompareAndSwap(old, period) {
		count := l.active.Swap(0)
		if period != old+1 {
			count = 0
		}
		l.before.Store(count)
	}
	if s.period != period {
		s.period = period
		l.active.Add(1)
	}
}

// setWake makes the scheduler return the stream when its open frame is due. The stripe's mutex is held.
func (c *sharedCore) setWake(s *shardStream) {
	if s.wake.IsZero() || s.due.Before(s.wake) {
		s.wake = s.due
		c.sched.AddLingering(s, s.due)
	}
}

// endLinger makes the open frame urgent if it is due.
func (c *sharedCore) endLinger(s *shardStream, now time.Time) {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	if !s.wake.After(now) {
		s.wake = time.Time{}
	}
	switch {
	case s.open == nil || s.urgent:
	case s.due.After(now): // the frame is a newer one
		c.setWake(s)
	default:
		s.urgent = true
		c.scheduleStream(s)
	}
}

// endLongLinger makes the message's frame linger no longer than if there were few.
func (r *Result) endLongLinger() {
	s, c := r.stream, r.core
	if s == nil {
		return
	}
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	if s.open == nil || s.open.out != r {
		return
	}
	s.noteAwaited()
	c.scheduleStream(s) // in another lane, if it was to be sent
	if s.urgent {
		return
	}
	if due := s.open.taken.Add(c.cfg.linger); due.Before(s.due) {
		s.due = due
		c.setWake(s)
	}
}

// noteShortage makes the largest open frames be sent if open frames have more than three quarters of the memory, or more than is left beside charge,
// for which a call waits, in bytes.
func (c *sharedCore) noteShortage(charge int64) {
	if c.open.Load() <= min(c.memory.total*3/4, c.memory.total-charge) {
		return
	}
	for {
		old := c.shortage.Load()
		if old >= max(charge, 1) || c.shortage.CompareAndSwap(old, max(charge, 1)) {
			break
		}
	}
	c.sched.SignalLoop()
}

// relieveMemory seals open frames after a shortage of memory, until they have half of it: the largest ones, since those that are left
// gain most from lingering.
func (c *sharedCore) relieveMemory() {
	charge := c.shortage.Swap(0)
	if charge == 0 {
		return
	}
	var (
		bySize [64]int64 // charges of the open frames, by the logarithm of their length
		open   int64
	)
	c.forEachOpen(func(s *shardStream) bool {
		n := s.open.capacity + frameOverhead
		bySize[bits.Len(uint(s.open.builder.Len()))] += n
		open += n
		return true
	})
	excess := open - min(c.memory.total/2, c.memory.total-charge)
	least := len(bySize)
	for sum := int64(0); sum < excess && least > 0; {
		least--
		sum += bySize[least]
	}
	c.forEachOpen(func(s *shardStream) bool {
		if bits.Len(uint(s.open.builder.Len())) >= least {
			excess -= s.open.capacity + frameOverhead
			c.sealFrame(s, false)
			c.scheduleStream(s)
		}
		return excess > 0
	})
}

// forEachOpen calls fn for streams that have an open frame, until it returns false. The stripe's mutex is held.
func (c *sharedCore) forEachOpen(fn func(*shardStream) bool) {
	for i := range c.stripes {
		if !c.stripes[i].forEachOpen(fn) {
			return
		}
	}
}

func (st *streamStripe) forEachOpen(fn func(*shardStream) bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, s := range st.mu.streams {
		if s.open != nil && !fn(s) {
			return false
		}
	}
	return true
}
