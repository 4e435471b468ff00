package aggregate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

func TestDistinctEstimates(t *testing.T) {
	for _, n := range []int{0, 1, maxExact, maxExact + 1, 10_000, 1_000_000} {
		var d, half distinct
		for i := range n {
			h := scramble(uint64(i))
			d.add(h)
			d.add(h)
			if i%2 == 0 {
				half.add(h)
			}
		}
		got := d.count()
		if n <= maxExact && got != int64(n) || math.Abs(float64(got)-float64(n)) > 0.03*float64(n) {
			t.Errorf("%d values are estimated as %d", n, got)
		}
		merged := half
		merged.set, merged.registers = slices.Clone(half.set), slices.Clone(half.registers)
		merged.merge(&d)
		if merged.count() != got {
			t.Errorf("merged %d, want %d", merged.count(), got)
		}
		if d.bytes() > registers {
			t.Errorf("%d values take %d bytes", n, d.bytes())
		}
	}
	var d distinct
	d.add(0)
	d.add(0)
	if d.count() != 1 {
		t.Errorf("the hash 0 is counted %d times", d.count())
	}
}

func TestQuantilesAreAccurate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all sketch
	parts := make([]sketch, 3)
	var xs []float64
	for i := range 20_000 {
		x := math.Exp(rng.NormFloat64()*5) * float64(1-2*(i%3/2))
		if i%50 == 0 {
			x = 0
		}
		xs = append(xs, x)
		all.add(x)
		parts[i%3].add(x)
	}
	sort.Float64s(xs)
	parts[2].merge(&parts[0])
	parts[2].merge(&parts[1])
	for _, q := range []float64{0, 0.001, 0.1, 0.33, 0.5, 0.9, 0.99, 1} {
		want := xs[max(int(math.Ceil(q*float64(len(xs))))-1, 0)]
		got := all.quantile(q)
		if math.Abs(got-want) > accuracy*1.0001*math.Abs(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
		if merged := parts[2].quantile(q); merged != got {
			t.Errorf("merged quantile %v is %v, want %v", q, merged, got)
		}
	}
}

// A sketch depends on what it was given alone, not on the order, also where bins are shared.
func TestSketchIsBoundedAndWithoutOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64(), 1, 60).Draw(t, "numbers")
		xs = append(xs, rapid.SliceOf(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324, -5e-324})).Draw(t, "special")...)
		var a, b, c sketch
		for i, x := range xs {
			a.add(x)
			if i%2 == 0 {
				c.add(x)
			} else {
				b.add(x)
			}
		}
		b.merge(&c)
		var reversed sketch
		for _, x := range slices.Backward(xs) {
			reversed.add(x)
		}
		for q := 0.0; q <= 1; q += 1.0 / 64 {
			x, y, z := a.quantile(q), b.quantile(q), reversed.quantile(q)
			if math.Float64bits(x) != math.Float64bits(y) || math.Float64bits(x) != math.Float64bits(z) {
				t.Fatalf("quantile %v is %v, %v and %v", q, x, y, z)
			}
		}
		if a.bytes() > 2*8*maxBins || len(a.positive.counts) > maxBins {
			t.Fatalf("%d bytes", a.bytes())
		}
	})
}
