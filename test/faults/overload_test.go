package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/netfault"
	"scribe/test/program"
)

// deafStore takes no payload for seconds.
var deafStore = netfault.StoreFaults{Hang: 1, Hold: 700 * time.Millisecond}

// TestOverload writes many times what the cell may hold in memory to it while its store takes nothing: what does not fit is refused, at once
// and with a hint; what was accepted is stored; and no process takes more memory than its bounds allow.
func TestOverload(t *testing.T) {
	s := begin(t, "overload")
	const floods = 12
	over := make(chan struct{})
	for i := range floods {
		level, server := producer.AckNone, writeProxy1
		switch i % 3 {
		case 1:
			level, server = producer.AckCommitted, writeProxy2
		case 2:
			server = agent
		}
		flood := &writer{
			name: fmt.Sprintf("flood-%d", i), category: catHost, shard: 3, level: level, options: patient(), pace: time.Millisecond, size: 400 << 10,
			server: func() string { return s.c.url(server) }, write: (*writer).single,
		}
		s.w.add(flood)
		flood.until = over
		s.w.running.Go(func() { flood.run(t.Context()) })
	}
	s.v.others = append(s.v.others, "unchecked")
	program.OK(t, nil, "category", "create", "unchecked", "--server", s.c.url(controlPlane))
	s.step("an overload", outage(t), func() {
		s.c.store.Set(deafStore)
		s.refusedQuickly()
	}, func() {
		close(over)
		s.c.store.Set(netfault.StoreFaults{})
	})
	refused := 0.0
	for _, m := range s.c.with(partBatcher) {
		refused += s.v.scrape(m).Sum("scribe_batcher_overloaded_requests_total")
	}
	if refused == 0 && program.CountNodes(t) == 0 { // a node's agent refuses before its batcher does
		t.Error("no batcher has refused anything: this was no overload")
	}
	s.end()
}

// refusedQuickly writes until something is refused, and proves that whoever is refused is told at once.
func (s *scenario) refusedQuickly() {
	s.Helper()
	p, err := producer.New(s.c.url(writeProxy1), producer.WithRetries(0), producer.WithAck(producer.AckNone))
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), program.WaitLimit)
	defer cancel()
	defer func() { _ = p.Close(ctx) }()
	payload := make([]byte, 1<<20)
	began := time.Now()
	for refused := 0; refused < 10 && time.Since(began) < program.WaitLimit; {
		for i := range payload {
			payload[i] = byte(s.rng.Uint32())
		}
		began := time.Now()
		err := p.Write(ctx, "unchecked", producer.Message{Payload: payload})
		if !errors.Is(err, producer.ErrOverloaded) {
			continue
		}
		refused++
		if took := time.Since(began); took > producer.DefaultRequestTimeout/2 {
			s.Errorf("invariant 16: a write was refused after %v", took)
		}
	}
}
