package faults

import (
	"testing"
	"time"

	"scribe/test/netfault"
)

// TestStore lets the object store fail in every way: before a request is carried out, after it, in the middle, slowly, and not at all
// for a while. No process ends in it, so every message of every hop is accounted for in the end.
func TestStore(t *testing.T) {
	t.Parallel()
	s := begin(t, "store")
	set := func(f netfault.StoreFaults) func() { return func() { s.c.store.Set(f) } }
	for range rounds(t) {
		for _, f := range []struct {
			what   string
			faults netfault.StoreFaults
		}{
			{"requests that were refused", netfault.StoreFaults{SlowDown: 0.2, CutBefore: 0.1, CutUpload: 0.1}},
			{"requests that were carried out without an answer", netfault.StoreFaults{CutAfter: 0.3, FailAfter: 0.2, CutAnswer: 0.1}},
			{"slow answers", netfault.StoreFaults{Delay: 0.5, MaxDelay: 500 * time.Millisecond}},
			{"requests that hung", netfault.StoreFaults{Hang: 0.1, Hold: time.Second}},
			{"everything at once", netfault.StoreFaults{
				SlowDown: 0.05, CutBefore: 0.05, CutUpload: 0.05, CutAfter: 0.1, FailAfter: 0.1, CutAnswer: 0.05, Hang: 0.02, Hold: time.Second,
				Delay: 0.2, MaxDelay: 200 * time.Millisecond,
			}},
		} {
			s.step(f.what, 1500*time.Millisecond, set(f.faults), set(netfault.StoreFaults{}))
		}
		s.step("an outage of the store", outage(t), set(netfault.StoreFaults{CutBefore: 1}), set(netfault.StoreFaults{}))
		s.step("a crash of the store", 500*time.Millisecond, s.c.s3.Stop, s.c.s3.Restart)
	}
	t.Logf("faults of the store: %v", s.c.store.Counts())
	s.end()
}
