package writeproxy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/role/quota"
	"scribe/internal/role/traffic"
	scribev1 "scribe/proto/scribe/v1"
)

// tenantCell returns a cell with quotas of tenants, and categories of the owner shop by name with quotas of their own.
func tenantCell(t *testing.T, registry *prometheus.Registry, quotas []*scribev1.TenantQuota, categories map[string]uint64) *cell {
	t.Helper()
	tenants := quota.NewTenants(quotas)
	c := newCell(t, config.Defaults[Config](), 1, func(d *Deps) {
		d.Tenants = func() *quota.Tenants { return tenants }
		if registry != nil {
			d.Registerer = registry
			counter, err := traffic.NewCounter(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(counter.Close)
			d.Traffic = counter
		}
	})
	for name, own := range categories {
		c.catalog.limit(name, own, block).Owner = "shop"
	}
	return c
}

// TestTenantQuotasAddUp: what the categories of an owner or a prefix write counts together. The error, the metrics and the traffic say which quota refused.
func TestTenantQuotasAddUp(t *testing.T) {
	for _, tc := range []struct {
		quota             *scribev1.TenantQuota
		says              string
		kind              quota.Kind
		byOwner, byPrefix uint64
	}{
		{&scribev1.TenantQuota{Owner: "shop", WriteBytesPerSecond: 1000}, "over the quota of its owner shop, 1000B/s", quota.OfOwner, 1, 0},
		{&scribev1.TenantQuota{Prefix: "shop.", WriteBytesPerSecond: 1000}, "over the quota of names that begin with shop., 1000B/s", quota.OfPrefix, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			c := tenantCell(t, registry, []*scribev1.TenantQuota{tc.quota}, map[string]uint64{"shop.a": 0, "shop.b": 0})
			a, b, other := sized(t, "shop.a", 0, 600), sized(t, "shop.b", 0, 600), makeFrame(t, "least", 0, false, "other")
			if got := reasons(c.write(a, other, b)); !slices.Equal(got, []scribev1.Reason{0, 0, 0}) {
				t.Fatalf("within the quota: %v", got)
			}
			results := c.write(b, other)
			if got := reasons(results); !slices.Equal(got, []scribev1.Reason{overloaded, 0}) || !strings.Contains(results[0].GetError().GetMessage(), tc.says) {
				t.Errorf("beyond the quota: %v, want %q", results, tc.says)
			}
			if hint := results[0].GetError().GetRetryAfter().AsDuration(); hint.Round(time.Millisecond) != 200*time.Millisecond {
				t.Errorf("hint %v", hint)
			}
			if got := gathered(t, registry)["scribe_writeproxy_over_quota_bytes_total/refused/"+string(tc.kind)]; got != 600 {
				t.Errorf("%v bytes are counted as refused", got)
			}
			busiest, _ := c.deps.Traffic.Busiest(10, "shop.b")
			if len(busiest) != 1 || busiest[0].OverQuotaMessages != 1 || busiest[0].OverOwnerQuotaMessages != tc.byOwner || busiest[0].OverPrefixQuotaMessages != tc.byPrefix {
				t.Errorf("traffic %+v", busiest)
			}
		})
	}
}

// TestStrictestQuotaDecides: a frame passes the category's quota, its prefix' and its owner's, and what the last one refuses does not count for the others.
func TestStrictestQuotaDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenantCell(t, nil, []*scribev1.TenantQuota{
			{Owner: "shop", WriteBytesPerSecond: 1000}, {Prefix: "shop.", WriteBytesPerSecond: 10_000},
		}, map[string]uint64{"shop.a": 5000, "shop.small": 100, "else": 0})
		a, small, elsewhere := sized(t, "shop.a", 0, 500), sized(t, "shop.small", 0, 500), sized(t, "else", 0, 500)
		if got := reasons(c.write(small, small)); !slices.Equal(got, []scribev1.Reason{0, overloaded}) {
			t.Fatalf("the category's quota: %v", got)
		}
		// The frame that the category's quota refused is not the owner's: there is room for one more.
		if got := reasons(slices.Concat(c.write(a), c.write(elsewhere))); !slices.Equal(got, []scribev1.Reason{0, overloaded}) {
			t.Fatalf("the owner's quota: %v", got)
		}
		// Whatever the owner's quota refuses leaves the category's and the prefix' full.
		for range 100 {
			if got := reasons(c.write(a)); got[0] != overloaded {
				t.Fatalf("beyond the owner's quota: %v", got)
			}
		}
		for _, key := range []quota.Key{{Category: c.catalog.all["shop.a"].GetId()}, {Tenant: "shop.*"}} {
			l := quota.Limit{Key: key, Bytes: map[bool]uint64{true: 5000, false: 10_000}[key.Tenant == ""]}
			if n, _ := c.quotas.PassLeading(l, 8, func(int) int64 { return 500 }); n != 8 {
				t.Errorf("%+v was charged for what the owner's quota refused: %d of 8 frames pass", key, n)
			}
		}
	})
}

// TestThrottledTwice: frames wait for one quota after another, each request passes as a whole, and all of it comes to the strictest.
func TestThrottledTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenantCell(t, nil, []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 1000, Mode: throttle}}, map[string]uint64{"a": 2000, "b": 0})
		c.catalog.all["a"].QuotaMode = throttle
		var all sync.WaitGroup
		begin := time.Now()
		for range 10 {
			for _, name := range []string{"a", "b"} {
				frame := sized(t, name, 0, 500)
				all.Go(func() {
					if got := reasons(c.write(frame)); got[0] != 0 {
						t.Errorf("%s: %v", name, got)
					}
				})
			}
		}
		all.Wait()
		if took := time.Since(begin); took < 8*time.Second || took > 10*time.Second {
			t.Errorf("10,000 bytes at 1,000 a second, of which 1,000 at once, took %v", took)
		}
		if used := c.quotas.Waiting.Used(); used != 0 {
			t.Errorf("%d bytes are held for nobody", used)
		}
		// Who can't wait for the second quota gets the first one's bytes back.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		res, err := c.Write(ctx, &scribev1.WriteRequest{Frames: slices.Concat(sized(t, "a", 0, 500)), Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
		if err != nil || res.GetResults()[0].GetError().GetReason() != overloaded || !strings.Contains(res.GetResults()[0].GetError().GetMessage(), "owner shop") {
			t.Errorf("%v, %v", res, err)
		}
	})
}

// TestSampledByOwner: an owner's quota samples all of its categories alike but those that are exactly_once, which it blocks.
func TestSampledByOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tenantCell(t, nil, []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 5000, Mode: sample}}, map[string]uint64{"a": 0, "b": 0, "strict": 0})
		c.catalog.all["strict"].Delivery = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
		kept, out := 0, 0
		a, b := sized(t, "a", 0, 500), sized(t, "b", 0, 500)
		for range 400 {
			for _, r := range c.write(a, b) {
				if r.GetSampledOut() {
					out++
				} else if r.GetError() == nil {
					kept++
				}
			}
			<-time.After(50 * time.Millisecond)
		}
		if kept < 180 || kept > 260 || kept+out != 800 {
			t.Errorf("%d frames were kept and %d left out, want about 200 of 800 in 20 s", kept, out)
		}
		strict := sized(t, "strict", 0, 500)
		var refused int
		for range 30 {
			for _, r := range c.write(strict) {
				if r.GetSampledOut() {
					t.Fatal("an exactly_once frame was left out")
				}
				if r.GetError().GetReason() == overloaded {
					refused++
				}
			}
		}
		if refused == 0 {
			t.Error("exactly_once frames have no quota")
		}
	})
}

// TestNotAdmittedIsGivenBack: what the gate refuses after the quotas, because too many requests wait for batchers, was charged to none of them.
func TestNotAdmittedIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := quota.NewTenants([]*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 2000}})
		cfg := config.Defaults[Config]()
		cfg.RequestsMost = 1
		c := newCell(t, cfg, 1, func(d *Deps) { d.Tenants = func() *quota.Tenants { return tenants } })
		c.catalog.limit("a", 3000, block).Owner = "shop"
		a, b := sized(t, "a", 0, 500), sized(t, "least", 0, 500)
		hold := make(chan struct{})
		c.batchers[0].hold = hold
		var all sync.WaitGroup
		all.Go(func() { c.write(b) })
		synctest.Wait()
		for range 20 {
			for _, r := range c.write(a, a, b) {
				if !strings.Contains(r.GetError().GetMessage(), "requests wait for batchers") {
					t.Fatalf("at the bound of the gate: %v", r)
				}
			}
		}
		close(hold)
		all.Wait()
		if got := reasons(c.write(a, a, a, a)); !slices.Equal(got, make([]scribev1.Reason, 4)) {
			t.Errorf("within the quotas, once the gate is open: %v", got)
		}
	})
}
