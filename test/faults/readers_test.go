package faults

import (
	"testing"
	"time"

	"scribe/test/history"
	"scribe/test/netfault"
)

// readers begins a scenario of the read path: a cell under a load that many consumers follow.
func readers(t *testing.T, purpose string, l layout) *scenario {
	t.Helper()
	s := prepare(t, purpose)
	c := startCell(t, s.seed, l)
	s.c, s.w = c, emptyWorkload(c, s.seed)
	s.w.create(catLeast, history.Guarantees{}, "--delivery", "at_least_once")
	s.w.create(catOnce, history.Guarantees{ExactlyOnce: true, NoGivingUp: true}, "--delivery", "exactly_once")
	s.w.create(catBound, history.Guarantees{}, "--delivery", "at_least_once", "--repeatable", "bound")
	direct := func(name string) func() string { return func() string { return c.url(name) } }
	for shard := range uint32(4) {
		via := direct([]string{writeProxy1, writeProxy2}[shard%2])
		s.w.add(&writer{name: "least-" + string('0'+rune(shard)), category: catLeast, shard: shard, options: patient(), server: via, write: (*writer).batch})
		s.w.add(&writer{name: "bound-" + string('0'+rune(shard)), category: catBound, shard: shard, options: patient(), server: via, write: (*writer).batch})
	}
	s.w.add(&writer{name: "atomic", category: catBound, shard: 0, options: patient(), server: direct(writeProxy1), write: (*writer).atomic})
	// So much that who stands still holds what it may.
	s.w.add(&writer{name: "large", category: catLeast, shard: 3, options: patient(), server: direct(writeProxy2), write: (*writer).single, size: 250 << 10, pace: 50 * time.Millisecond})
	s.w.add(&writer{name: "once", category: catOnce, shard: 0, options: patient(), server: direct(writeProxy2), write: (*writer).batch})
	s.w.add(&writer{name: "once-atomic", category: catOnce, shard: 1, options: patient(), server: direct(writeProxy1), write: (*writer).atomic})
	s.v = newVerifier(c, s.w)
	s.w.start()
	s.w.advance(5)
	s.follow()
	s.a.caughtUp("before anything fails")
	return s
}

// TestReadersKilled ends and pauses what consumers read from, while they follow a category that is written.
func TestReadersKilled(t *testing.T) {
	t.Parallel()
	s := readers(t, "readers killed", layout{})
	for range rounds(t) {
		victims := [][]*member{
			{s.c.member(reader1)},
			{s.c.member(reader2)},
			{s.c.member(metaLog)},
			{s.c.member(batcher1)},
			{s.c.member(reader1), s.c.member(reader2)},
			{s.c.member(reader1), s.c.member(metaLog), s.c.member(controlPlane)},
		}
		for _, together := range drawSome(s, 3, victims) {
			s.kill(together...)
		}
		s.step("an orderly end of "+reader2, 100*time.Millisecond, func() { s.c.member(reader2).stop() }, func() { s.c.start(s.c.member(reader2)) })
		for _, name := range []string{reader1, metaLog, reader2} {
			length := time.Duration(s.rng.Int64N(int64(outage(t))))
			s.step("a pause of "+name+" of "+length.String(), length, s.pauseProcess(name), s.resumeProcess(name))
		}
	}
	s.end()
}

// TestReadersCut lets the store and the network fail under consumers: bytes come late, in part, damaged, or not at all.
func TestReadersCut(t *testing.T) {
	t.Parallel()
	s := readers(t, "readers cut", layout{unpushed: true})
	set := func(f netfault.StoreFaults) func() { return func() { s.c.store.Set(f) } }
	for range rounds(t) {
		for _, f := range []struct {
			what   string
			faults netfault.StoreFaults
		}{
			{"requests that were refused", netfault.StoreFaults{SlowDown: 0.3, CutBefore: 0.1}},
			{"bodies that were cut", netfault.StoreFaults{CutAnswer: 0.4}},
			{"bodies that were damaged", netfault.StoreFaults{Damage: 0.2}},
			{"slow answers", netfault.StoreFaults{Delay: 0.5, MaxDelay: 500 * time.Millisecond}},
			{"everything at once", netfault.StoreFaults{
				SlowDown: 0.05, CutBefore: 0.05, CutAfter: 0.05, CutAnswer: 0.1, Damage: 0.1, Hang: 0.02, Hold: time.Second, Delay: 0.2, MaxDelay: 200 * time.Millisecond,
			}},
		} {
			s.step(f.what, 700*time.Millisecond, func() {
				set(f.faults)()
				if f.faults.Damage > 0 && s.a.damaged() == 0 {
					// A block is read again before it is taken for damaged, so it takes some blocks.
					eventually(t, "a consumer meets damaged bytes", func() bool { return s.a.damaged() > 0 })
				}
			}, set(netfault.StoreFaults{}))
		}
		s.step("an outage of the store", outage(t)/2, set(netfault.StoreFaults{CutBefore: 1}), set(netfault.StoreFaults{}))
		s.step("a cut of "+reader1, outage(t)/2, s.set(netfault.Hang, reader1), s.set(netfault.Pass, reader1))
		s.step("answers of both readers that were lost", outage(t)/2, s.set(netfault.LoseAnswers, reader1, reader2), s.set(netfault.Pass, reader1, reader2))
		s.step("connections that were cut at random", outage(t),
			s.chaos(netfault.Chaos{CutRequest: 0.01, CutAnswer: 0.01, Delay: 0.1, MaxDelay: 20 * time.Millisecond}, reader1, reader2, metaLog),
			s.chaos(netfault.Chaos{}, reader1, reader2, metaLog))
	}
	t.Logf("faults of the store: %v", s.c.store.Counts())
	s.end()
}
