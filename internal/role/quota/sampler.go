package quota

import (
	"math"
	"time"
)

const (
	// sampleMemory is the time constant of the average of offered bytes in sampling.
	sampleMemory = 2 * time.Second
	// maxSampleDebt bounds the debt of sampling, in bursts: one frame far beyond a small quota must not silence its category for
	// hours.
	maxSampleDebt = 16
	// maxSampleRate bounds the rate that one proxy samples at.
	maxSampleRate = 1 << 20
)

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

// Sampler decides which units of a category are kept: frames where it is written, payloads where it is read. A share of 1/N of them is
// kept, each of which stands for N. So sums over what is kept, times N, are unbiased estimates of sums over what was offered, even while
// N changes.
type Sampler struct {
	offered rateMeter
	turn    uint64 // which units are kept
	dither  uint64 // which of two whole numbers N is
}

// SampleUnit decides whether a unit of size bytes is kept. It returns N if it is kept and stands for N units, 0 if it is left out.
//
// N follows how much is offered, as a multiple of the quota. What passes nevertheless beyond the quota, since offers are seen late
// and units have sizes, is owed to the bucket, and debt raises N until it is paid. N must be whole; in between, two neighbours take
// turns so that the share kept is the one wanted: 5% over the quota costs 5% of the units, not half.
func (s *Sampler) SampleUnit(now time.Duration, size int64, b *Bucket) uint32 {
	s.offered.addBytes(now, size, sampleMemory)
	b.refill(now)
	b.tokens = max(b.tokens, -maxSampleDebt*burstOf(b.rate))
	excess := max(s.offered.rateAt(now, sampleMemory)/b.rate, 1) * (1 + max(-b.tokens, 0)/burstOf(b.rate))
	// Both sequences step with every unit, kept or not: only then are they evenly distributed along every selection.
	s.turn += goldenStep
	s.dither += rootStep
	n := s.roundRate(min(excess, maxSampleRate))
	if n > 1 && s.turn >= math.MaxUint64/uint64(n) {
		return 0
	}
	b.Charge(float64(size))
	return n
}

// roundRate returns one of the two whole numbers around x, in turns so that the mean of 1/N is 1/x.
func (s *Sampler) roundRate(x float64) uint32 {
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

// ScaleRate returns the sample rate of a unit that had one already, 0 and 1 both standing for all.
func ScaleRate(had, n uint32) uint32 {
	return uint32(min(uint64(max(had, 1))*uint64(n), math.MaxUint32))
}
