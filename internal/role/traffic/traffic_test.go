package traffic

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sumOf adds up everything that a counter knows.
func sumOf(c *Counter, limit int) (sum Counts, named int) {
	busiest, rest := c.Busiest(limit, "")
	for _, b := range busiest {
		sum = sum.Plus(b.Counts)
	}
	return sum.Plus(rest), len(busiest)
}

func newCounter(t *testing.T, r prometheus.Registerer) *Counter {
	t.Helper()
	c, err := NewCounter(r)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBusiest: the busiest come first, what was busy long ago comes later, and nothing is lost from the sum.
func TestBusiest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, nil)
		c.Add(Category{Name: "once"}, Counts{WrittenBytes: 5_000_000, WrittenMessages: 1})
		<-time.After(10 * time.Minute)
		for range 10 {
			c.Add(Category{Name: "web.busy", Owner: "shop", Quota: 7}, Counts{WrittenBytes: 10_000, WrittenMessages: 10})
			c.Add(Category{Name: "web.read"}, Counts{ReadBytes: 5_000, ReadPayloads: 1, ReadMessages: 3})
			c.Add(Category{Name: "idle"}, Counts{WrittenBytes: 10})
			<-time.After(time.Second)
		}
		busiest, rest := c.Busiest(2, "")
		if len(busiest) != 2 || busiest[0].Name != "web.busy" || busiest[1].Name != "web.read" || busiest[0].Owner != "shop" || busiest[0].Quota != 7 {
			t.Fatalf("the busiest are %+v", busiest)
		}
		if busiest[0].WrittenBytes != 100_000 || busiest[0].WrittenMessages != 100 || busiest[1].ReadMessages != 30 || rest.WrittenBytes != 5_000_100 {
			t.Errorf("%+v, and the rest %+v", busiest, rest)
		}
		if only, rest := c.Busiest(1, "web."); len(only) != 1 || only[0].Name != "web.busy" || rest.WrittenBytes != 0 || rest.ReadBytes != 50_000 {
			t.Errorf("of web.: %+v, and the rest %+v", only, rest)
		}
		var none *Counter
		none.Add(Category{Name: "x"}, Counts{WrittenBytes: 1}) // counts nothing, and does not fail
	})
}

// TestBounded: however many categories come, memory is bounded, a busy one stays, and the sum is exact.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, nil)
		const many = MaxCategories + 5000
		for i := range many {
			c.Add(Category{Name: fmt.Sprint("c", i)}, Counts{WrittenBytes: 1, FailedMessages: 2})
			if i%100 == 0 {
				c.Add(Category{Name: "busy"}, Counts{WrittenBytes: 1_000_000})
			}
		}
		if n := len(c.mu.byName); n != MaxCategories {
			t.Errorf("%d categories are counted for themselves, the bound is %d", n, MaxCategories)
		}
		sum, named := sumOf(c, 10)
		if named != 10 || sum.WrittenBytes != many+many/100*1_000_000 || sum.FailedMessages != 2*many {
			t.Errorf("%d named, in all %+v", named, sum)
		}
		if busiest, _ := c.Busiest(1, ""); busiest[0].Name != "busy" || busiest[0].WrittenBytes != many/100*1_000_000 {
			t.Errorf("the busiest is %+v", busiest)
		}
	})
}

// TestMetrics: at most the busiest have a series of their own, every series only grows whoever gets and loses a label, and together they are all
// that was counted.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		c := newCounter(t, registry)
		before := map[string]float64{}
		written := 0.0
		for round := range 12 {
			for i := range 3 * Labelled {
				n := 1 + uint64((i*7+round*13)%(3*Labelled))*1000 // others are busy in each round
				c.Add(Category{Name: fmt.Sprint("c", i), Owner: "o"}, Counts{WrittenBytes: n})
				written += float64(n)
			}
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			series, sum := 0, 0.0
			for _, f := range families {
				if f.GetName() != "scribe_category_written_bytes_total" {
					continue
				}
				for _, m := range f.GetMetric() {
					name, value := m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()
					if value < before[name] {
						t.Errorf("round %d: %s went from %v to %v", round, name, before[name], value)
					}
					before[name] = value
					series++
				}
			}
			for _, v := range before { // of those that lost their label as of then
				sum += v
			}
			if series > Labelled+1 || sum != written {
				t.Errorf("round %d: %d series, %v bytes in all; want at most %d, and %v", round, series, sum, Labelled+1, written)
			}
			<-time.After(time.Minute)
		}
		c.Close()
		if families, err := registry.Gather(); err != nil || len(families) > 0 {
			t.Errorf("%d metrics are left, %v", len(families), err)
		}
	})
}
