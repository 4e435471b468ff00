package writeproxy

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// TestHighestIsNotTouched: while batchers answer nothing and as many requests as may wait for them, those of lower priority are refused at once with a hint;
// those of the highest reach the batchers, until they are themselves as many as may be.
func TestHighestIsNotTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		cfg := config.Defaults[Config]()
		cfg.RequestsMost, cfg.RequestsLeast = 8, 8
		c := newCell(t, cfg, 1, func(d *Deps) { d.Registerer = registry })
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		c.catalog.limit("low", 0, block).Priority = scribev1.Priority_PRIORITY_LOW
		c.catalog.limit("critical", 0, block).Priority = scribev1.Priority_PRIORITY_CRITICAL
		low, critical := sized(t, "low", 0, 600), sized(t, "critical", 0, 600)
		var all sync.WaitGroup
		var mu sync.Mutex
		answers := map[string][]scribev1.Reason{}
		start := func(name string, frame []byte, n int) {
			for range n {
				all.Go(func() {
					got := reasons(c.write(frame))
					mu.Lock()
					defer mu.Unlock()
					answers[name] = append(answers[name], got...)
				})
			}
			synctest.Wait()
		}
		refused := func(name string) int {
			mu.Lock()
			defer mu.Unlock()
			return len(answers[name])
		}
		start("low", low, 100)
		if n := refused("low"); n != 92 {
			t.Errorf("%d of 100 are refused, want all but 8", n)
		}
		start("critical", critical, 8)
		if n := refused("critical"); n != 0 {
			t.Errorf("%d of the highest priority are refused", n)
		}
		start("low", low, 10)
		if n := refused("low"); n != 102 {
			t.Errorf("%d of the lowest are refused, want all that came later", n)
		}
		results := c.write(low, critical) // as many of the highest wait as may
		if got := reasons(results); !slices.Equal(got, []scribev1.Reason{overloaded, overloaded}) || results[0].GetError().GetRetryAfter().AsDuration() <= 0 ||
			!strings.Contains(results[1].GetError().GetMessage(), "requests wait for batchers") {
			t.Errorf("beyond its own number: %v", results)
		}
		got := gathered(t, registry)
		if got["scribe_writeproxy_not_admitted_bytes_total/queue"] == 0 || got["scribe_writeproxy_not_admitted_bytes_total/priority"] == 0 {
			t.Errorf("metrics %v, %v", got["scribe_writeproxy_not_admitted_bytes_total/queue"], got["scribe_writeproxy_not_admitted_bytes_total/priority"])
		}
		if got["scribe_writeproxy_queue_requests"] != 16 || got["scribe_writeproxy_queue_length"] != 8 {
			t.Errorf("%v requests of %v", got["scribe_writeproxy_queue_requests"], got["scribe_writeproxy_queue_length"])
		}
		close(hold)
		all.Wait()
		if n := gathered(t, registry)["scribe_writeproxy_queue_requests"]; n != 0 {
			t.Errorf("%v requests are left", n)
		}
		<-time.After(5 * time.Second)
		if got := reasons(c.write(low, critical)); !slices.Equal(got, []scribev1.Reason{0, 0}) {
			t.Errorf("when batchers answer: %v", got)
		}
	})
}

// TestSlowBatchers: while batchers take longer than they should, fewer requests are let in to wait for them; when they are fast, as many as before.
func TestSlowBatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Defaults[Config]()
		cfg.RequestsMost, cfg.RequestsLeast, cfg.SlowAnswer = 100, 2, 2*time.Second
		c := newCell(t, cfg, 1)
		frame := makeFrame(t, "least", 0, false, "x")
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		var all sync.WaitGroup
		for range 150 { // for 15 seconds nothing is answered
			all.Go(func() { c.write(frame) })
			<-time.After(100 * time.Millisecond)
		}
		if s := c.gate.ReadState(); s.Length != 2 || s.Latency < 1900*time.Millisecond || s.Inside > 100 {
			t.Errorf("at a standstill: %+v", s)
		}
		if got := reasons(c.write(frame)); got[0] != overloaded {
			t.Errorf("at a standstill: %v", got)
		}
		close(hold)
		all.Wait()
		for range 100 {
			c.write(frame)
			<-time.After(100 * time.Millisecond)
		}
		if s := c.gate.ReadState(); s.Length != 100 || s.Inside != 0 {
			t.Errorf("when they are fast again: %+v", s)
		}
	})
}
