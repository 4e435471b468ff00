package aggregate

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"pgregory.net/rapid"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
)

func TestDistinctEstimates(t *testing.T) {
	for _, n := range []int{0, 1, maxExact, maxExact + 1, 10_000, 1_000_000} {
		var d distinctCounter
		for i := range n {
			h := scrambleWord(uint64(i))
			d.addHash(h)
			d.addHash(h)
		}
		got := d.estimateCount()
		if n <= maxExact && got != int64(n) || math.Abs(float64(got)-float64(n)) > 0.03*float64(n) {
			t.Errorf("%d values are estimated as %d", n, got)
		}
		if d.heldBytes() > registers {
			t.Errorf("%d values take %d bytes", n, d.heldBytes())
		}
	}
	var d distinctCounter
	d.addHash(0)
	d.addHash(0)
	if d.estimateCount() != 1 {
		t.Errorf("the hash 0 is counted %d times", d.estimateCount())
	}
}

func TestQuantilesAreAccurate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all quantileSketch
	var xs []float64
	for i := range 20_000 {
		x := math.Exp(rng.NormFloat64()*5) * float64(1-2*(i%3/2))
		if i%50 == 0 {
			x = 0
		}
		xs = append(xs, x)
		all.addNumber(x)
	}
	sort.Float64s(xs)
	for _, q := range []float64{0, 0.001, 0.1, 0.33, 0.5, 0.9, 0.99, 1} {
		want := xs[max(int(math.Ceil(q*float64(len(xs))))-1, 0)]
		got := all.quantileAt(q)
		if math.Abs(got-want) > accuracy*1.0001*math.Abs(want) || (q == 0 || q == 1) && got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

// A sketch depends on what it was given alone, not on the order, also where bins are shared.
func TestSketchIsBoundedAndWithoutOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(rapid.Float64(), 1, 60).Draw(t, "numbers")
		xs = append(xs, rapid.SliceOf(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324, -5e-324})).Draw(t, "special")...)
		var a, b quantileSketch
		for i, x := range xs {
			a.addNumber(x)
			if i%2 != 0 {
				b.addNumber(x)
			}
		}
		for i, x := range xs {
			if i%2 == 0 {
				b.addNumber(x)
			}
		}
		var reversed quantileSketch
		for _, x := range slices.Backward(xs) {
			reversed.addNumber(x)
		}
		sort.Float64s(xs) // NaN is below everything there, and above here
		numbers := xs[sort.Search(len(xs), func(i int) bool { return xs[i] == xs[i] }):]
		for q := 0.0; q <= 1; q += 1.0 / 64 {
			x, y, z := a.quantileAt(q), b.quantileAt(q), reversed.quantileAt(q)
			if x == x && (x < numbers[0] || x > numbers[len(numbers)-1]) || x != x && len(numbers) == len(xs) {
				t.Fatalf("quantile %v of %v is %v", q, xs, x)
			}
			if math.Float64bits(x) != math.Float64bits(y) || math.Float64bits(x) != math.Float64bits(z) {
				t.Fatalf("quantile %v is %v, %v and %v", q, x, y, z)
			}
		}
		if a.heldBytes() > 2*8*maxBins || len(a.positive.counts) > maxBins {
			t.Fatalf("%d bytes", a.heldBytes())
		}
	})
}

// An aggregator has one answer however its rows are spread over batches.
func TestBatchesDoNotMatter(t *testing.T) {
	interval, float64s := schema.Type{Kind: schema.Interval}, schema.Type{Kind: schema.Float64}
	g := countBy("int32")
	for _, c := range []string{"int32", "int64", "uint64", "float64", "decimal"} {
		g.Aggregates = append(g.Aggregates, plan.Aggregate{Func: "approx_quantile", Arg: column(c), Params: []float64{0.5}, T: float64s})
	}
	g.Aggregates = append(g.Aggregates,
		plan.Aggregate{Func: "sum", Arg: column("float64"), T: float64s}, plan.Aggregate{Func: "avg", Arg: column("float64"), T: float64s},
		plan.Aggregate{Func: "sum", Arg: column("interval"), T: interval}, plan.Aggregate{Func: "avg", Arg: column("interval"), T: interval})
	var all []row
	for i := range 200 {
		r := make(row, len(columns))
		r[1], r[2], r[3], r[4] = int32(i%3), int64(i-50), uint64(i), float64(i)/4
		r[5], r[11] = decimal128.FromI64(int64(i)), arrow.MonthDayNanoInterval{Months: int32(i % 5), Days: int32(i), Nanoseconds: int64(i) * 1000}
		all = append(all, r)
	}
	made := func(batches ...[]row) *Aggregator {
		a, err := New(g, arrowSchema(), Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range batches {
			if err := a.Add(batchOf(rows)); err != nil {
				t.Fatal(err)
			}
		}
		return a
	}
	whole, parts := made(all), made(all[:70], all[70:])
	want, got := result(t, whole), result(t, parts)
	if !slices.Equal(got, want) || len(got) != 3 {
		t.Errorf("got %v, want %v", got, want)
	}
	if w, m := whole.Stats(), parts.Stats(); w.Rows != m.Rows || w.Groups != m.Groups {
		t.Errorf("%+v, want %+v", m, w)
	}
}
