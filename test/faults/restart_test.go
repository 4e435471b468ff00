package faults

import (
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/history"
	"scribe/test/netfault"
)

// TestRestartedProducer restarts a producer with its saved identity, and lets it cut its source into other frames than before: the
// first one is stored in part. It must go on within a few of its requests, whoever is in between, and a zombie of it must be refused.
func TestRestartedProducer(t *testing.T) {
	t.Parallel()
	s := prepare(t, "restarted producer")
	const patience = time.Minute
	s.c = startCell(t, s.seed, layout{})
	s.w = newWorkload(s.c, s.seed)
	s.v = newVerifier(s.c, s.w)
	for i, server := range []string{writeProxy1, agent} {
		t.Run("through the "+server, func(t *testing.T) {
			wr := &writer{w: s.w, name: "restarted-" + server, category: catOnce, shard: uint32(i), level: producer.AckCommitted, size: 1000, rng: s.rng} //nolint:gosec // two
			wr.server = func() string { return s.c.url(server) }
			wr.options = patient()
			if err := wr.open(nil); err != nil {
				t.Fatal(err)
			}
			zombie := wr.p
			identity := zombie.Identity()
			wr.mustWrite(t, 2)

			wr.next = 0
			if err := wr.open(&identity); err != nil {
				t.Fatal(err)
			}
			// While the first frame is on its way two more are filled, which go together then: of the first of them a part is
			// stored, the other one comes after messages that are not.
			front := s.c.member(server).front
			front.Set(netfault.Hang)
			var sent []pending
			for _, n := range []int{1, 2} {
				for _, m := range wr.source(n) {
					sent = append(sent, pending{
						s.w.h.Begin(wr.category, wr.shard, m), wr.p.WriteAsync(wr.category, &producer.Message{Payload: m.Payload, Shard: wr.shard}),
					})
				}
				pause(t, 20*producer.DefaultLinger)
			}
			reached := time.AfterFunc(100*time.Millisecond, func() { front.Set(netfault.Pass) })
			defer reached.Stop()
			began := time.Now()
			wr.mustWrite(t, 5)
			for _, p := range sent {
				wr.tell(p.attempt, 0, p.result.Wait(t.Context()))
			}
			if took := time.Since(began); took > patience {
				t.Errorf("the restarted producer needed %v", took)
			}
			wr.close(t.Context())

			newer := wr.p.Identity()
			newer.Epoch++
			newer.Sequences = nil
			if err := wr.open(&newer); err != nil {
				t.Fatal(err)
			}
			wr.mustWrite(t, 5)
			wr.close(t.Context())
			wr.p = zombie
			wr.next = 100
			if err := wr.several(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if wr.failed.Load() != 1 {
				t.Error("the zombie was not refused")
			}
			wr.close(t.Context())
		})
	}
	s.v.atRest("in the end")
	s.c.stopAll()
}

// pending is a write whose outcome is asked for later.
type pending struct {
	attempt *history.Attempt
	result  *producer.Result
}

// mustWrite writes messages, all of which must be acknowledged.
func (wr *writer) mustWrite(t *testing.T, n int) {
	t.Helper()
	before := wr.acked.Load()
	if err := wr.several(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if acked := wr.acked.Load() - before; acked != int64(n) {
		t.Fatalf("%d of %d messages were acknowledged:\n%s", acked, n, wr.log.Tail(20))
	}
}
