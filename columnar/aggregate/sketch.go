package aggregate

import "math"

// quantileSketch estimates quantiles of numbers with a bounded relative error: DDSketch (C. Masson, J. Rim, H. Lee, "DDSketch: a
// fast and fully-mergeable quantile sketch with relative-error guarantees", 2019). It counts numbers in bins whose bounds grow by
// gamma. It depends only on the multiset of numbers: where there would be more than maxBins, the lowest magnitudes share a bin,
// and the greatest magnitude of all determines which bins share.
type quantileSketch struct {
	positive, negative sketchBins
	zeros              int64
	// least and greatest are those of the finite numbers, if there are any.
	least, greatest float64
	// Counts of the infinities and of NaN, which is above everything as in PostgreSQL.
	lowest, highest, nans int64
}

// accuracy is the relative error of a result.
const accuracy = 0.01

// maxBins is the maximum number of bins per sign: 16 KiB, and gamma^2048 is 6 * 10^17.
const maxBins = 2048

var (
	gamma      = (1 + accuracy) / (1 - accuracy)
	multiplier = 1 / math.Log(gamma)
)

// sketchBins counts numbers per bin. counts[0] is the count of the bin with number first.
type sketchBins struct {
	counts []int64
	first  int
	total  int64
}

func (s *quantileSketch) addNumber(x float64) {
	switch {
	case x != x:
		s.nans++
		return
	case x > math.MaxFloat64:
		s.highest++
		return
	case x < -math.MaxFloat64:
		s.lowest++
		return
	}
	if s.finiteCount() == 0 {
		s.least, s.greatest = x, x
	}
	s.least, s.greatest = min(s.least, x), max(s.greatest, x)
	switch {
	case x > 0:
		s.positive.countIn(binOf(x))
	case x < 0:
		s.negative.countIn(binOf(-x))
	default:
		s.zeros++
	}
}

func (s *quantileSketch) finiteCount() int64 { return s.positive.total + s.negative.total + s.zeros }

// binOf returns the bin number of a positive x: the i with gamma^(i-1) < x <= gamma^i.
func binOf(x float64) int { return int(math.Ceil(math.Log(x) * multiplier)) }

// middleOf returns a number that differs from every number of bin i by at most the accuracy.
func middleOf(i int) float64 {
	// The greatest bin's bound exceeds float64.
	return min(2*math.Exp(float64(i)/multiplier-math.Log(gamma+1)), math.MaxFloat64)
}

// countIn counts a number of bin i.
func (b *sketchBins) countIn(i int) {
	b.total++
	if len(b.counts) == 0 {
		b.counts, b.first = append(b.counts, 1), i
		return
	}
	last := b.first + len(b.counts) - 1
	switch {
	case i < b.first:
		i = max(i, last-maxBins+1)
		b.moveRange(min(i, b.first), last)
	case i > last:
		b.moveRange(max(b.first, i-maxBins+1), i)
	}
	b.counts[i-b.first]++
}

// moveRange makes the bins those from first to last. There are at most maxBins of them, and they include the old last or the old
// first. Counts below them move to the lowest bin.
func (b *sketchBins) moveRange(first, last int) {
	if first == b.first && last < b.first+len(b.counts) {
		return
	}
	if n := last - first + 1; first == b.first && n <= cap(b.counts) {
		old := len(b.counts)
		b.counts = b.counts[:n]
		clear(b.counts[old:])
		return
	}
	// Leave capacity to grow, equally on both sides.
	size := min(maxBins, last-first+1+(last-first+1)/2)
	counts := make([]int64, last-first+1, max(size, 16))
	for k, n := range b.counts {
		if at := b.first + k - first; n != 0 {
			counts[min(max(at, 0), len(counts)-1)] += n
		}
	}
	b.counts, b.first = counts, first
}

func (s *quantileSketch) countNumbers() int64 {
	return s.finiteCount() + s.lowest + s.highest + s.nans
}

// quantileAt returns the value that a share q (0 to 1) of the numbers does not exceed: percentile_disc up to the accuracy, and
// always within the range of the numbers. There must be at least one number.
func (s *quantileSketch) quantileAt(q float64) float64 {
	rank := max(int64(math.Ceil(q*float64(s.countNumbers())))-1, 0) // rank of the result, from 0
	if rank -= s.lowest; rank < 0 {
		return math.Inf(-1)
	}
	if rank < s.finiteCount() {
		return s.finiteAt(rank)
	}
	if rank -= s.finiteCount(); rank < s.highest {
		return math.Inf(1)
	}
	return math.NaN()
}

// finiteAt returns the approximate number at a rank among the finite ones. The first and the last are exact.
func (s *quantileSketch) finiteAt(rank int64) float64 {
	switch rank {
	case 0:
		return s.least
	case s.finiteCount() - 1:
		return s.greatest
	}
	x := 0.0
	if rank < s.negative.total {
		x = -s.negative.magnitudeAt(s.negative.total - 1 - rank)
	} else if rank -= s.negative.total + s.zeros; rank >= 0 {
		x = s.positive.magnitudeAt(rank)
	}
	return min(max(x, s.least), s.greatest)
}

// magnitudeAt returns the magnitude of the number at a rank.
func (b *sketchBins) magnitudeAt(rank int64) float64 {
	for k, n := range b.counts {
		if rank -= n; rank < 0 {
			return middleOf(b.first + k)
		}
	}
	return math.NaN()
}

func (s *quantileSketch) heldBytes() int64 {
	return 8 * int64(cap(s.positive.counts)+cap(s.negative.counts))
}
