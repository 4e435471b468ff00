package quota

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clocked returns a registry that shares with n-1 others, and its clock.
func clocked(n int) (*Registry, *time.Duration) {
	now := new(time.Duration)
	return NewRegistry(func() time.Duration { return *now }, func() int { return n }, 1<<20), now
}

func (qs *Registry) pass(category uint32, n int, size int64) int {
	passed, _ := qs.PassLeading(Limit{Key: Key{Category: category}, Bytes: 1000}, n, func(int) int64 { return size })
	return passed
}

func nearly(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestReportsTheBusiest: a report that would be too long has the largest demands, and what it leaves out is in a later one.
func TestReportsTheBusiest(t *testing.T) {
	qs, now := clocked(2)
	const categories = MaxDemands + 50
	for c := range uint32(categories) {
		qs.pass(c+1, 1, int64(100+c)) // the later ones are the busier ones
	}
	*now = time.Second
	r := qs.CollectDemands()
	if len(r.Demands) != MaxDemands || !r.Cut || r.Demands[0].Category != categories || r.Demands[MaxDemands-1].Category != 51 {
		t.Fatalf("%d demands from category %d on, cut %v", len(r.Demands), r.Demands[0].Category, r.Cut)
	}
	qs.ApplyLeases(r, nil)
	*now = 2 * time.Second
	r = qs.CollectDemands()
	if len(r.Demands) != 50 || r.Cut {
		t.Fatalf("%d demands that were not told, cut %v", len(r.Demands), r.Cut)
	}
	for _, d := range r.Demands {
		if want := float64(99+d.Category) / 1000; !nearly(d.Passed, want) || !nearly(d.Wanted, want/2) {
			t.Errorf("category %d: %v passed, %v wanted, want %v and half of it", d.Category, d.Passed, d.Wanted, want)
		}
	}
}

// TestQuietTimeHidesNothing: what comes after a quiet time is told at once, not spread over all of it.
func TestQuietTimeHidesNothing(t *testing.T) {
	qs, now := clocked(2)
	qs.pass(1, 1, 1)
	for range 8 * 60 {
		*now += time.Minute
		if r := qs.CollectDemands(); len(r.Demands) > 0 {
			t.Fatalf("%v is told of next to nothing", r.Demands)
		}
	}
	qs.pass(1, 9, 50)
	*now += time.Second
	r := qs.CollectDemands()
	if len(r.Demands) != 1 || !nearly(r.Demands[0].Wanted, 0.45) {
		t.Errorf("demands %+v, want 0.45 of the quota", r.Demands)
	}
}

// TestCountsSurviveAReport: what comes between a report and its answer is in the next report, and so is all of a report that failed.
func TestCountsSurviveAReport(t *testing.T) {
	qs, now := clocked(4)
	qs.pass(1, 1, 100)
	*now = time.Second
	qs.CollectDemands() // which failed
	*now = 2 * time.Second
	r := qs.CollectDemands()
	qs.pass(1, 1, 60)
	qs.ApplyLeases(r, nil)
	if !nearly(r.Demands[0].Passed, 0.1) || !nearly(r.Demands[0].Wanted, 0.05) {
		t.Errorf("after a failed report: %+v", r.Demands[0])
	}
	*now = 3 * time.Second
	if r = qs.CollectDemands(); !nearly(r.Demands[0].Passed, 0.06) || !nearly(r.Demands[0].Wanted, 0.06) {
		t.Errorf("after the answer: %+v", r.Demands[0])
	}
	qs.ApplyLeases(r, nil)
	*now = 4 * time.Second
	if r = qs.CollectDemands(); len(r.Demands) != 0 || r.Pressing {
		t.Errorf("when nothing is offered any more: %+v", r)
	}
}

// TestShortIsPressing: a category that did not get through wants more than its share, and wakes the reporter once for each report.
func TestShortIsPressing(t *testing.T) {
	qs, now := clocked(4)
	for range 3 {
		qs.pass(1, 2, 500)
	}
	if len(qs.Short) != 1 {
		t.Fatal("the reporter was not woken")
	}
	<-qs.Short
	qs.pass(1, 1, 1)
	if len(qs.Short) != 0 {
		t.Error("the reporter was woken twice for one report")
	}
	*now = time.Minute // the rate is low when it is told so late
	r := qs.CollectDemands()
	if !r.Pressing || r.Demands[0].Wanted != 0.25*shortGrowth {
		t.Errorf("%+v", r)
	}
	qs.ApplyLeases(r, map[Key]float64{{Category: 1}: 0.5})
	if r = qs.CollectDemands(); !r.Pressing {
		t.Error("a lease is not repeated")
	}
	for range 3 {
		qs.pass(1, 2, 500)
	}
	if len(qs.Short) != 1 {
		t.Error("the reporter was not woken after a report")
	}
}

// TestLeaseRaisesTheShare until it expires.
func TestLeaseRaisesTheShare(t *testing.T) {
	qs, now := clocked(4)
	passed := func() (n int) {
		for range 100 {
			*now += 10 * time.Millisecond
			n += qs.pass(1, 10, 1)
		}
		return n
	}
	passed()
	if n := passed(); n < 247 || n > 253 {
		t.Errorf("%d of 1000 a second passed without a lease", n)
	}
	if _, leased := qs.CountQuotas(); leased != 0 {
		t.Error("a lease from nowhere")
	}
	qs.ApplyLeases(qs.CollectDemands(), map[Key]float64{{Category: 1}: 0.8})
	if _, leased := qs.CountQuotas(); leased != 1 {
		t.Error("the lease is not counted")
	}
	if n := passed(); n < 795 || n > 805 {
		t.Errorf("%d of 1000 a second passed with four fifths", n)
	}
	*now += LeaseTime
	passed()
	if n := passed(); n < 247 || n > 253 {
		t.Errorf("%d of 1000 a second passed after the lease", n)
	}
	// Less than the equal share is nobody's lease.
	qs.ApplyLeases(qs.CollectDemands(), map[Key]float64{{Category: 1}: 0.1})
	if n := passed(); n < 247 || n > 253 {
		t.Errorf("%d of 1000 a second passed with a lease of a tenth", n)
	}
}

// TestBusyIsNotForgotten: a state that was used a moment ago stays, also if its bucket is full again.
func TestBusyIsNotForgotten(t *testing.T) {
	qs, now := clocked(4)
	qs.pass(64, 1, 100)
	*now = idleAfter - time.Second
	for i := range uint32(20) {
		qs.pass(128+64*i, 1, 1) // in the same stripe
	}
	if r := qs.CollectDemands(); len(r.Demands) == 0 || qs.stripes[0].byKey[Key{Category: 64}] == nil {
		t.Errorf("a busy category was forgotten: %+v", r.Demands)
	}
	*now = time.Hour
	for i := range uint32(100) {
		qs.pass(64*(i+1000), 1, 1)
	}
	if known, _ := qs.CountQuotas(); known > 105 {
		t.Errorf("%d states are kept of 100 that are used", known)
	}
}

// TestRequestsAreLimited: a request is charged once, whatever it holds, and the stricter of two limits decides.
func TestRequestsAreLimited(t *testing.T) {
	qs, now := clocked(1)
	l := Limit{Key: Key{Category: 1}, Requests: 10}
	n := 0
	for range 30 {
		if passed, _ := qs.PassLeading(l, 5, func(int) int64 { return 1 << 30 }); passed == 5 {
			n++
		}
	}
	if n != 10 {
		t.Errorf("%d requests passed at once", n)
	}
	if _, after := qs.PassLeading(l, 1, func(int) int64 { return 1 }); after > time.Millisecond*101 || after <= 0 {
		t.Errorf("hint %v", after)
	}
	l.Bytes = 1000
	*now = time.Minute
	if passed, _ := qs.PassLeading(l, 5, func(int) int64 { return 600 }); passed != 2 {
		t.Errorf("%d of 5 parts passed within the bytes", passed)
	}
	l.Bytes, l.Requests = 1000, 0 // the quota of requests is removed
	*now = time.Hour
	for range 100 {
		if passed, _ := qs.PassLeading(l, 1, func(int) int64 { return 1 }); passed != 1 {
			t.Fatal("limited without a limit")
		}
	}
}

// fakeDivider grants all to whoever asks.
type fakeDivider struct {
	share float64
	away  atomic.Bool
	calls chan *scribev1.ShareQuotasRequest
}

func (f *fakeDivider) ShareQuotas(_ context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error) {
	f.calls <- req
	if f.away.Load() {
		return nil, errors.New("away")
	}
	res := &scribev1.ShareQuotasResponse{}
	for _, d := range req.GetDemands() {
		res.Leases = append(res.Leases, &scribev1.QuotaLease{Category: d.GetCategory(), Share: f.share})
	}
	for _, d := range req.GetTenants() {
		res.Leases = append(res.Leases, &scribev1.QuotaLease{Tenant: d.GetTenant(), Share: f.share})
	}
	return res, nil
}

// TestThrottledTrafficGrows: one writer that waits for its turn each time reaches the whole quota, although little waits at any time.
func TestThrottledTrafficGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		qs := NewRegistry(func() time.Duration { return time.Since(begin) }, func() int { return 4 }, 1<<20)
		f := &fakeDivider{share: 1, calls: make(chan *scribev1.ShareQuotasRequest, 1000)}
		r := StartReporter(qs, f, "m", scribev1.Role_ROLE_WRITEPROXY, slog.New(slog.DiscardHandler))
		defer r.Stop()
		l := Limit{Key: Key{Category: 1}, Bytes: 100_000}
		passed := 0
		for time.Since(begin) < 10*time.Second {
			w, _, ok := qs.EnterLine(t.Context(), l, 1000, 1)
			if ok && w != nil {
				ok, _ = qs.AwaitTurn(t.Context(), l, w, nil)
			}
			if !ok {
				t.Fatal("refused without a deadline")
			}
			passed += 1000
		}
		if passed < 900_000 || passed > 1_100_000 {
			t.Errorf("%d bytes passed in ten seconds", passed)
		}
		wanted := 0.0
		for range len(f.calls) {
			for _, d := range (<-f.calls).GetDemands() {
				wanted = max(wanted, d.GetWanted())
			}
		}
		if wanted < 1 {
			t.Errorf("at most %v of the quota were wanted", wanted)
		}
	})
}

// TestReporter: it speaks only when there is something to say, more often while something presses, and goes on after failures.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		qs := NewRegistry(func() time.Duration { return time.Since(begin) }, func() int { return 4 }, 1<<20)
		f := &fakeDivider{calls: make(chan *scribev1.ShareQuotasRequest, 1000)}
		f.away.Store(true)
		r := StartReporter(qs, f, "m", scribev1.Role_ROLE_READPROXY, slog.New(slog.DiscardHandler))
		use := func(seconds int, n int) {
			for range seconds * 10 {
				qs.pass(1, n, 10)
				<-time.After(100 * time.Millisecond)
			}
		}
		<-time.After(time.Minute)
		use(10, 1) // a tenth of the quota
		if n := len(f.calls); n < 4 || n > 6 {
			t.Errorf("%d reports in ten calm seconds", n)
		}
		if done, failed := r.CountReports(); done != 0 || failed == 0 {
			t.Errorf("%d reports were taken, %d failed", done, failed)
		}
		f.away.Store(false)
		<-time.After(10 * time.Second)
		for range len(f.calls) {
			req := <-f.calls
			if req.GetMember() != "m" || req.GetRole() != scribev1.Role_ROLE_READPROXY {
				t.Errorf("%v", req)
			}
		}
		use(10, 20) // twice the quota
		if n := len(f.calls); n < 30 || n > 60 {
			t.Errorf("%d reports in ten pressing seconds", n)
		}
		<-time.After(10 * time.Second) // the last one gives everything back
		var last *scribev1.ShareQuotasRequest
		for range len(f.calls) {
			last = <-f.calls
		}
		if len(last.GetDemands()) != 0 {
			t.Errorf("the last report is %v", last)
		}
		r.Stop()
	})
}
