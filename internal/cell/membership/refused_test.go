package membership

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// errRefused is the answer to a process that has another one's id.
var errRefused = rpc.Errorf(scribev1.Reason_REASON_MEMBER_REFUSED, "another process has this id")

// refusals counts calls of OnRefused.
type refusals struct{ count atomic.Int64 }

func (r *refusals) config() LeaseConfig {
	return LeaseConfig{Member: &scribev1.Member{Id: "m", Incarnation: "a"}, TTL: 9 * time.Second, OnRefused: func(err error) {
		if isRefusal(err) {
			r.count.Add(1)
		}
	}}
}

// TestRefused: a process that the cell refuses is told at once, and asks no more.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, refused := newRegistrar(), new(refusals)
		r.set(func(r *registrar) { r.mu.fail = errRefused })
		if _, err := Join(t.Context(), r, refused.config()); !isRefusal(err) {
			t.Errorf("Join: %v", err)
		}
		wantCalls(t, r, "0s join m load 0 as a")
		kept, err := Keep(r, refused.config())
		if err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		wantCalls(t, r, "0s join m load 0 as a")
		if n := refused.count.Load(); n != 1 {
			t.Errorf("told %d times", n)
		}
		closeLease(t, kept)
	})
}

// TestRefusedLater: so is one that has been a member.
func TestRefusedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, refused := newRegistrar(), new(refusals)
		l, err := Join(t.Context(), r, refused.config())
		if err != nil {
			t.Fatal(err)
		}
		r.set(func(r *registrar) { r.mu.fail = errRefused })
		advance(time.Minute)
		wantCalls(t, r, "0s join m load 0 as a", "3s heartbeat load 0 as a")
		if s := l.State(); s.Live || refused.count.Load() != 1 {
			t.Errorf("%+v, told %d times", s, refused.count.Load())
		}
		r.set(func(r *registrar) { r.mu.fail = nil })
		closeLease(t, l)
		wantCalls(t, r, "1m0s leave m as a")
	})
}

// TestRefusedForNow: a refusal with a hint passes.
func TestRefusedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, refused := newRegistrar(), new(refusals)
		r.set(func(r *registrar) {
			r.mu.fail = rpc.RetryErrorf(scribev1.Reason_REASON_MEMBER_REFUSED, time.Second, "the one with this id does not answer")
		})
		l, err := Keep(r, refused.config())
		if err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		r.set(func(r *registrar) { r.mu.fail = nil })
		advance(10 * time.Second)
		if s := l.State(); !s.Live || refused.count.Load() != 0 {
			t.Errorf("%+v, told %d times", s, refused.count.Load())
		}
		closeLease(t, l)
	})
}

// TestStoreIsReported: requests name the store of payloads as soon as it is known, and the state says with which the process was admitted.
func TestStoreIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		var store atomic.Pointer[string]
		store.Store(new(string))
		var states []string
		l, err := Join(t.Context(), r, LeaseConfig{
			Member: &scribev1.Member{Id: "m"}, TTL: 9 * time.Second, Store: func() string { return *store.Load() },
			OnChange: func(s LeaseState) { states = append(states, s.Store) },
		})
		if err != nil {
			t.Fatal(err)
		}
		advance(time.Second)
		store.Store(new("s"))
		advance(6 * time.Second)
		wantCalls(t, r, "0s join m load 0", "3s heartbeat load 0 store s", "6s heartbeat load 0 store s")
		closeLease(t, l)
		if len(states) < 2 || states[0] != "" || states[1] != "s" {
			t.Errorf("admitted with %q", states)
		}
	})
}
