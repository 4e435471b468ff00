package admission

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// host is a closed system: so many clients, each of which sends a request, waits for the answer and thinks; a request takes CPU time
// on one of some processors, and waits for a store. Who is refused comes back after a pause.
type host struct {
	clients     float64
	cpu, wait   float64 // seconds of a request
	think       float64
	processors  float64
	background  float64 // utilisation by others
	inside      float64
	controller  *LengthController
	length      int
	utilisation float64
	throughput  float64
}

// step advances by dt with the equilibrium that so many requests queued or in service have.
func (h *host) step(dt time.Duration) {
	capacity := h.processors * (1 - h.background) / h.cpu
	// By Little's law: as many in service as all clients would have, at most the length.
	natural := min(h.clients, h.clients*(h.cpu+h.wait)/(h.cpu+h.wait+h.think))
	if h.clients/(h.cpu+h.wait+h.think) > capacity {
		natural = max(natural, h.clients-capacity*h.think)
	}
	h.inside = min(natural, float64(h.length))
	h.throughput = min(h.inside/(h.cpu+h.wait), capacity)
	h.utilisation = min(1, h.background+h.throughput*h.cpu/h.processors)
	h.length = h.controller.AdjustLength(h.utilisation, dt)
}

func (h *host) run(d time.Duration) {
	for range int(d / (100 * time.Millisecond)) {
		h.step(100 * time.Millisecond)
	}
}

func newHost(clients, cpu, wait float64) *host {
	c := NewController(ControllerConfig{Target: 0.9, Least: 16, Most: 4096})
	return &host{clients: clients, cpu: cpu, wait: wait, think: 0.01, processors: 2, controller: c, length: c.Length()}
}

// Whatever requests cost and whoever comes: with demand enough the utilisation settles at the target, without the queue is as long as
// it may be.
func TestControllerSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpu := rapid.Float64Range(0.0001, 0.01).Draw(t, "cpu")
		wait := cpu * rapid.Float64Range(20, 200).Draw(t, "wait/cpu")
		h := newHost(rapid.Float64Range(1, 20_000).Draw(t, "clients"), cpu, wait)
		h.run(2 * time.Minute)
		var sum float64
		var least, most float64 = 1, 0
		const samples = 100
		for range samples {
			h.step(100 * time.Millisecond)
			sum += h.utilisation
			least, most = min(least, h.utilisation), max(most, h.utilisation)
		}
		mean := sum / samples
		busy := h.clients/(cpu+wait+h.think)*cpu/h.processors > 0.95 // what they would like
		switch {
		case busy && math.Abs(mean-0.9) > 0.05:
			t.Fatalf("utilisation %.3f (%.3f to %.3f) with %d in service", mean, least, most, h.length)
		case busy && most-least > 0.15:
			t.Fatalf("it swings from %.3f to %.3f", least, most)
		case !busy && mean < 0.85 && h.length != 4096:
			t.Fatalf("length %d although the utilisation is %.3f", h.length, mean)
		}
	})
}

// After an hour at an end the controller answers within seconds: nothing has wound up.
func TestControllerDoesNotWindUp(t *testing.T) {
	h := newHost(10_000, 0.001, 0.05)
	h.background = 1 // somebody else takes everything
	h.run(time.Hour)
	if h.length != 16 {
		t.Fatalf("length %d under an hour of overload", h.length)
	}
	h.background = 0
	h.clients = 1
	h.run(5 * time.Second)
	if h.length != 4096 {
		t.Fatalf("length %d after 5 idle seconds", h.length)
	}
	h.run(time.Hour)
	h.background = 1
	h.run(8 * time.Second)
	if h.length != 16 {
		t.Fatalf("length %d after 8 seconds of overload", h.length)
	}
}

func TestControllerTakesAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := ControllerConfig{Target: rapid.Float64Range(0.01, 1).Draw(t, "target"), Least: rapid.IntRange(1, 100).Draw(t, "least")}
		cfg.Most = rapid.IntRange(cfg.Least, 1<<20).Draw(t, "most")
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		c := NewController(cfg)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			n := c.AdjustLength(rapid.Float64().Draw(t, "utilisation"), time.Duration(rapid.Int64Range(-1, math.MaxInt64).Draw(t, "dt")))
			if n < cfg.Least || n > cfg.Most {
				t.Fatalf("length %d is outside %d to %d", n, cfg.Least, cfg.Most)
			}
		}
	})
	full := NewController(ControllerConfig{Target: 1, Least: 1, Most: 100})
	for range 100 {
		if n := full.AdjustLength(1, time.Second); n != 100 {
			t.Fatalf("with a target of 1 the length became %d", n)
		}
	}
}

func TestControllerConfig(t *testing.T) {
	err := (&ControllerConfig{Target: math.NaN(), Least: 2, Most: 1}).Validate()
	if err == nil || !strings.Contains(err.Error(), "Target") || !strings.Contains(err.Error(), "Most") {
		t.Errorf("got %v", err)
	}
}

func TestMeter(t *testing.T) {
	begin := time.Unix(1000, 0)
	var cpu time.Duration
	m := NewMeter(func() time.Duration { return cpu }, 1000)
	if _, _, ok := m.Sample(begin, 0, time.Second); ok {
		t.Error("the first sample has nothing to compare with")
	}
	if _, _, ok := m.Sample(begin.Add(time.Second/2), 0, time.Second); ok {
		t.Error("a sample was taken too early")
	}
	cpu = time.Hour
	if u, dt, ok := m.Sample(begin.Add(time.Second), 100, time.Second); u != 1 || dt != time.Second || !ok {
		t.Errorf("%v, %v, %v", u, dt, ok)
	}
	if u, _, _ := m.Sample(begin.Add(2*time.Second), 600, time.Second); u != 0.5 {
		t.Errorf("%v with half of the network in use", u)
	}
	if u, _, _ := NewMeter(nil, 0).Sample(begin, 0, 0); u != 0 {
		t.Error(u)
	}
	if processTime() <= 0 {
		t.Error("the process has used no time")
	}
}
