package writeproxy

import (
	"math"
	"slices"
	"time"
)

// The quota of a category as plain state machines: they take sizes of frames and times, and decide which frames pass. Times are
// relative to any fixed instant and never decrease. quotaRegistry drives them.

const (
	// burstTime is the time in which a quota accumulates a full burst.
	burstTime = time.Second
	// sampleMemory is the time constant of the average of offered bytes in sampling.
	sampleMemory = 2 * time.Second
	// maxSampleDebt bounds the debt of sampling, in bursts: one frame far beyond a small quota must not silence its category for
	// hours.
	maxSampleDebt = 16
	// maxSampleRate bounds the rate that one proxy samples at.
	maxSampleRate = 1 << 20
)

// debtBucket is a token bucket that goes into debt: a frame passes while there are any tokens, and is charged in full. So frames
// larger than the burst pass too, and in the long run exactly the rate passes.
type debtBucket struct {
	tokens float64 // bytes; below 0 is debt
	rate   float64 // bytes a second
	at     time.Duration
}

func newDebtBucket(now time.Duration, rate float64) debtBucket {
	return debtBucket{tokens: burstOf(rate), rate: rate, at: now}
}

func burstOf(rate float64) float64 { return rate * burstTime.Seconds() }

// setRate changes the rate. Tokens and debt stay, but tokens above the new burst are lost.
func (b *debtBucket) setRate(now time.Duration, rate float64) {
	b.refill(now)
	b.rate = rate
	b.tokens = min(b.tokens, burstOf(rate))
}

func (b *debtBucket) refill(now time.Duration) {
	if passed := now - b.at; passed > 0 {
		b.tokens = min(b.tokens+b.rate*passed.Seconds(), burstOf(b.rate))
		b.at = now
	}
}

// isReady reports whether the next frame passes.
func (b *debtBucket) isReady(now time.Duration) bool {
	b.refill(now)
	return b.tokens > 0
}

// chargeBytes takes n bytes, going into debt if necessary.
func (b *debtBucket) chargeBytes(n int64) { b.tokens -= float64(n) }

// waitFor returns the time, from the last refill, until a frame passes that comes after ahead more bytes.
func (b *debtBucket) waitFor(ahead int64) time.Duration {
	need := float64(ahead) - b.tokens
	if need < 0 {
		return 0
	}
	seconds := need / b.rate
	if seconds >= (time.Duration(math.MaxInt64) / 2).Seconds() {
		return math.MaxInt64 / 2
	}
	// Rounded up, since a frame does not pass at exactly 0 tokens.
	return time.Duration(seconds*float64(time.Second)) + time.Microsecond
}

// isFull reports whether the bucket is full, as a new one is.
func (b *debtBucket) isFull(now time.Duration) bool {
	b.refill(now)
	return b.tokens >= burstOf(b.rate)
}

// rateMeter is an exponential moving average of a rate in bytes a second.
type rateMeter struct {
	sum float64 // bytes, weighted by their age
	at  time.Duration
}

func (m *rateMeter) addBytes(now time.Duration, n int64, memory time.Duration) {
	m.decayTo(now, memory)
	m.sum += float64(n)
}

func (m *rateMeter) decayTo(now, memory time.Duration) {
	if passed := now - m.at; passed > 0 {
		m.sum *= math.Exp(-passed.Seconds() / memory.Seconds())
		m.at = now
	}
}

func (m *rateMeter) rateAt(now, memory time.Duration) float64 {
	m.decayTo(now, memory)
	return m.sum / memory.Seconds()
}

// The steps of two Weyl sequences: the fractional parts of the golden ratio and of the square root of 2, times 2^64. Multiples of
// an irrational number are spread evenly, and so is every regular selection of them: of several producers that take turns, sampling
// keeps the same share of each, which counting frames would not, and without the luck of coin flips.
const (
	goldenStep = 0x9e3779b97f4a7c15
	rootStep   = 0x6a09e667f3bcc909
)

// frameSampler decides which frames of a category are kept. A share of 1/N of the frames is kept, each of which stands for N. So
// sums over kept frames, times N, are unbiased estimates of sums over offered frames, even while N changes.
type frameSampler struct {
	offered rateMeter
	turn    uint64 // which frames are kept
	dither  uint64 // which of two whole numbers N is
}

// sampleFrame decides whether a frame of size bytes is kept. It returns N if it is kept and stands for N frames, 0 if it is left
// out.
//
// N follows how much is offered, as a multiple of the quota. What passes nevertheless beyond the quota, since offers are seen late
// and frames have sizes, is owed to the bucket, and debt raises N until it is paid. N must be whole; in between, two neighbours take
// turns so that the share kept is the one wanted: 5% over the quota costs 5% of the frames, not half.
func (s *frameSampler) sampleFrame(now time.Duration, size int64, b *debtBucket) uint32 {
	s.offered.addBytes(now, size, sampleMemory)
	b.refill(now)
	b.tokens = max(b.tokens, -maxSampleDebt*burstOf(b.rate))
	excess := max(s.offered.rateAt(now, sampleMemory)/b.rate, 1) * (1 + max(-b.tokens, 0)/burstOf(b.rate))
	// Both sequences step with every frame, kept or not: only then are they evenly distributed along every selection.
	s.turn += goldenStep
	s.dither += rootStep
	n := s.roundRate(min(excess, maxSampleRate))
	if n > 1 && s.turn >= math.MaxUint64/uint64(n) {
		return 0
	}
	b.chargeBytes(size)
	return n
}

// roundRate returns one of the two whole numbers around x, in turns so that the mean of 1/N is 1/x.
func (s *frameSampler) roundRate(x float64) uint32 {
	low := math.Floor(x)
	if low == x {
		return uint32(low)
	}
	high := low + 1
	if float64(s.dither>>11)/(1<<53) < (1/x-1/high)/(1/low-1/high) {
		return uint32(low)
	}
	return uint32(high)
}

// scaleRate returns the sample rate of a frame that had one already, 0 and 1 both standing for all.
func scaleRate(had, n uint32) uint32 {
	return uint32(min(uint64(max(had, 1))*uint64(n), math.MaxUint32))
}

// quotaWaiter represents a request's frames of one category while they wait for their turn.
type quotaWaiter struct {
	bytes int64 // of the frames
	held  int64 // bytes of memory retained while they wait
	// turn receives a value when the waiter becomes the first of its line.
	turn chan struct{}
}

// waitLine is the FIFO queue of waiters for a category's quota.
type waitLine struct {
	waiters []*quotaWaiter
	bytes   int64 // of all frames
	held    int64 // of all waiters
}

func (l *waitLine) joinLine(bytes, held int64) *quotaWaiter {
	w := &quotaWaiter{bytes: bytes, held: held, turn: make(chan struct{}, 1)}
	l.waiters = append(l.waiters, w)
	l.bytes += bytes
	l.held += held
	if len(l.waiters) == 1 {
		w.turn <- struct{}{}
	}
	return w
}

// leaveLine removes a waiter, served or not, and signals the new first one.
func (l *waitLine) leaveLine(w *quotaWaiter) {
	i := slices.Index(l.waiters, w)
	if i < 0 {
		return
	}
	l.waiters = slices.Delete(l.waiters, i, i+1)
	l.bytes -= w.bytes
	l.held -= w.held
	switch {
	case len(l.waiters) == 0:
		l.waiters = nil // free the memory of an idle category
	case i == 0:
		l.waiters[0].turn <- struct{}{}
	}
}

// quotaState is the state of one category's quota, in any mode.
type quotaState struct {
	bucket  debtBucket
	sampler frameSampler
	line    waitLine
}

// passFrames charges the leading frames that pass, and returns their number. No frame overtakes one that does not pass.
func (q *quotaState) passFrames(now time.Duration, frames []*frameItem) (n int) {
	if len(q.line.waiters) > 0 {
		return 0
	}
	for n < len(frames) && q.bucket.isReady(now) {
		q.bucket.chargeBytes(int64(len(frames[n].bytes)))
		n++
	}
	return n
}

// waitTime returns the time until frames pass that come after all current waiters.
func (q *quotaState) waitTime(now time.Duration) time.Duration {
	q.bucket.refill(now)
	return q.bucket.waitFor(q.line.bytes)
}

// serveWaiter passes a waiter if it is its turn. Otherwise it returns the time until the bucket is ready, or 0 if other waiters
// come first.
func (q *quotaState) serveWaiter(now time.Duration, w *quotaWaiter) (passed bool, after time.Duration) {
	if q.line.waiters[0] != w {
		return false, 0
	}
	if !q.bucket.isReady(now) {
		return false, q.bucket.waitFor(0)
	}
	q.bucket.chargeBytes(w.bytes)
	q.line.leaveLine(w)
	return true, 0
}

// isIdle reports whether the state can be evicted, because a new one would be equivalent.
func (q *quotaState) isIdle(now time.Duration) bool {
	return len(q.line.waiters) == 0 && q.bucket.isFull(now) && q.sampler.offered.rateAt(now, sampleMemory) < q.bucket.rate/1000
}
