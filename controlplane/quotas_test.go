package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
)

// quotaCell is write proxies with one category, which report to a control plane.
type quotaCell struct {
	t       *testing.T
	control *ControlPlane
	away    atomic.Bool
	reports atomic.Int64
	limit   quota.Limit
	proxies []*quota.Registry
}

func (c *quotaCell) ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error) {
	c.reports.Add(1)
	if c.away.Load() {
		return nil, errors.New("the control plane is away")
	}
	return c.control.ShareQuotas(ctx, req)
}

// newQuotaCell starts four proxies; the last mute ones never report, as older programs.
func newQuotaCell(t *testing.T, mute int) *quotaCell {
	const n = 4
	c := &quotaCell{t: t, control: start(t, newStore(t), nil), limit: quota.Limit{Key: quota.Key{Category: 7}, Bytes: 1_000_000}}
	begin := time.Now()
	now := func() time.Duration { return time.Since(begin) }
	for i := range n {
		id := fmt.Sprintf("proxy-%d", i)
		reports := i < n-mute
		_, err := c.control.Join(t.Context(), &scribev1.JoinRequest{
			Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, SharesQuotas: reports}, Ttl: durationpb.New(maxTTL),
		})
		if err != nil {
			t.Fatal(err)
		}
		r := quota.NewRegistry(now, func() int { return n }, 1<<20)
		c.proxies = append(c.proxies, r)
		if reports {
			reporter := quota.StartReporter(r, c, id, scribev1.Role_ROLE_WRITEPROXY, slog.New(slog.DiscardHandler))
			t.Cleanup(reporter.Stop)
		}
	}
	return c
}

// run offers traffic for some seconds, and returns what passed in each, as a part of the quota. offered returns what comes to a proxy in a
// second, as a part of the quota too.
func (c *quotaCell) run(seconds int, offered func(second, proxy int) float64) []float64 {
	const step, size = 10 * time.Millisecond, 1000
	begin := time.Now().Add(3 * time.Millisecond) // never at the instant of a report
	passed := make([]float64, seconds)
	credit := make([]float64, len(c.proxies))
	for second := range seconds {
		for tick := range int(time.Second / step) {
			for i, r := range c.proxies {
				credit[i] += offered(second, i) * float64(c.limit.Bytes) * step.Seconds()
				n := int(credit[i] / size)
				credit[i] -= float64(n) * size
				if n == 0 {
					continue
				}
				got, _ := r.PassLeading(c.limit, n, func(int) int64 { return size })
				passed[second] += float64(got) * size / float64(c.limit.Bytes)
			}
			next := begin.Add(time.Duration(second)*time.Second + time.Duration(tick+1)*step)
			<-time.After(time.Until(next))
		}
	}
	return passed
}

// wantSum checks that what passed in any ten seconds from a second on is the quota, within a twentieth.
func wantSum(t *testing.T, what string, passed []float64, from int, want float64) {
	t.Helper()
	for i := from; i+10 <= len(passed); i++ {
		sum := 0.0
		for _, p := range passed[i : i+10] {
			sum += p
		}
		if math.Abs(sum/10-want) > 0.05*want {
			t.Errorf("%s: %.3f of the quota passed in the ten seconds from %d on, want %.3f: %.2f", what, sum/10, i, want, passed)
			return
		}
	}
}

// wantNoExcess checks that not more than 1.2 times the quota passes for longer than a lease.
func wantNoExcess(t *testing.T, what string, passed []float64) {
	t.Helper()
	row := 0
	for _, p := range passed {
		if row++; p <= 1.2 {
			row = 0
		}
		if row > int(quota.LeaseTime.Seconds()) {
			t.Errorf("%s: above 1.2 times the quota for %d seconds: %.2f", what, row, passed)
			return
		}
	}
}

// TestQuotaFollowsDemand: the sum of what proxies let pass is the quota, wherever the traffic is, and while it moves.
func TestQuotaFollowsDemand(t *testing.T) {
	for _, tc := range []struct {
		name    string
		offered func(second, proxy int) float64
		want    float64
	}{
		{"all to one", func(_, i int) float64 { return map[int]float64{0: 5}[i] }, 1},
		{"somewhat more than there is, to one", func(_, i int) float64 { return map[int]float64{0: 1.1}[i] }, 1},
		{"shifting every second", func(s, i int) float64 { return map[int]float64{s % 4: 5}[i] }, 1},
		{"shifting every three seconds", func(s, i int) float64 { return map[int]float64{s / 3 % 4: 3}[i] }, 1},
		{"to all", func(_, _ int) float64 { return 2 }, 1},
		{"much to one, some to the others", func(_, i int) float64 { return map[int]float64{0: 5}[i] + 0.15 }, 1},
		{"one alone, then another", func(s, i int) float64 { return map[bool]float64{true: 5}[i == s/20] }, 1},
		{"less than there is", func(_, i int) float64 { return map[int]float64{0: 0.9}[i] }, 0.9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newQuotaCell(t, 0)
				passed := c.run(40, tc.offered)
				wantSum(t, tc.name, passed, 5, tc.want)
				wantNoExcess(t, tc.name, passed)
			})
		})
	}
}

// TestQuotaBesideOlderProxies: proxies that never report have their equal shares, and no more than the rest is leased.
func TestQuotaBesideOlderProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQuotaCell(t, 1)
		wantSum(t, "one of three", c.run(20, func(_, i int) float64 { return map[int]float64{0: 5}[i] }), 5, 0.75)
		wantSum(t, "with the older one", c.run(20, func(_, i int) float64 { return map[int]float64{0: 5, 3: 5}[i] }), 5, 1)
	})
}

// TestQuotaWithoutControlPlane: equal shares are enforced once the leases have ended, and leases come back with the control plane.
func TestQuotaWithoutControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQuotaCell(t, 0)
		toOne := func(_, i int) float64 { return map[int]float64{0: 5}[i] }
		wantSum(t, "at first", c.run(20, toOne), 5, 1)
		c.away.Store(true)
		wantSum(t, "while it is away", c.run(20, toOne), 6, 0.25)
		c.away.Store(false)
		wantSum(t, "when it is back", c.run(20, toOne), 5, 1)
	})
}

// TestQuotasAreSilentWhenIdle: where no category with a quota is used, nothing is reported, and nothing is remembered.
func TestQuotasAreSilentWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newQuotaCell(t, 0)
		c.run(10, func(int, int) float64 { return 0 })
		if n := c.reports.Load(); n != 0 {
			t.Errorf("%d reports without any use", n)
		}
		c.run(10, func(_, i int) float64 { return map[int]float64{0: 5}[i] })
		if n, _ := c.control.quotas.countDivided(); n != 1 {
			t.Errorf("%d categories are divided", n)
		}
		if n := c.reports.Load(); n < 30 || n > 60 {
			t.Errorf("%d reports of one busy proxy in ten seconds", n)
		}
		c.run(10, func(int, int) float64 { return 0 })
		if n, _ := c.control.quotas.countDivided(); n != 0 {
			t.Errorf("%d categories are divided after their use", n)
		}
		before := c.reports.Load()
		if c.run(10, func(int, int) float64 { return 0 }); c.reports.Load() != before {
			t.Errorf("%d reports when nothing is used any more", c.reports.Load()-before)
		}
	})
}

func TestQuotaReportsAreChecked(t *testing.T) {
	c := start(t, newStore(t), nil)
	_, err := c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{Role: scribev1.Role_ROLE_BATCHER, Demands: []*scribev1.QuotaDemand{{Category: 1}, {Category: 1}}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "member: ", "role: ", "demands: ")
	for _, d := range []*scribev1.QuotaDemand{{}, {Category: 1, Wanted: math.NaN()}, {Category: 1, Wanted: math.Inf(1)}, {Category: 1, Passed: -1}} {
		_, err := c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{Member: "a", Role: scribev1.Role_ROLE_READPROXY, Demands: []*scribev1.QuotaDemand{d}})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "demands: ")
	}
	many := make([]*scribev1.QuotaDemand, quota.MaxDemands+1)
	_, err = c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{Member: "a", Role: scribev1.Role_ROLE_READPROXY, Demands: many})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "demands: ")
	// Who is not a member leases nothing.
	res, err := c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{Member: "a", Role: scribev1.Role_ROLE_READPROXY, Demands: []*scribev1.QuotaDemand{{Category: 1, Wanted: 5}}})
	if err != nil || len(res.GetLeases()) != 0 {
		t.Errorf("%v, %v", res, err)
	}
}
