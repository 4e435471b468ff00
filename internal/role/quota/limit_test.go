package quota

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	modeBlock    = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	modeThrottle = scribev1.QuotaMode_QUOTA_MODE_THROTTLE
	modeSample   = scribev1.QuotaMode_QUOTA_MODE_SAMPLE
)

func show(limits []Limit) string {
	var out []string
	for _, l := range limits {
		out = append(out, fmt.Sprintf("%s %s %d/%d %s", l.Kind, l.Name, l.Bytes, l.Requests, scribev1.EnumName(l.Mode)))
	}
	return strings.Join(out, ", ")
}

// TestLimits: a category is under its own quota, that of the longest prefix and its owner's, in this order, and under none that limits nothing.
func TestLimits(t *testing.T) {
	tenants := NewTenants([]*scribev1.TenantQuota{
		{Owner: "shop", WriteBytesPerSecond: 10, ReadRequestsPerSecond: 3, Mode: modeThrottle},
		{Prefix: "web.", WriteBytesPerSecond: 20, ReadBytesPerSecond: 5, Mode: modeSample},
		{Prefix: "web.shop.", WriteBytesPerSecond: 30, Mode: modeBlock},
		{Prefix: "_", WriteBytesPerSecond: 40},
		{Prefix: "new.", WriteBytesPerSecond: 50, Mode: 9},
		{WriteBytesPerSecond: 60},
		{Owner: "both", Prefix: "other", WriteBytesPerSecond: 70},
	})
	category := func(name, owner string, quota uint64) *scribev1.Category {
		return &scribev1.Category{Name: name, Owner: owner, Id: 7, QuotaBytesPerSecond: quota, QuotaMode: modeBlock}
	}
	once := category("web.a", "shop", 0)
	once.Delivery = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
	for _, tc := range []struct {
		of          *scribev1.Category
		write, read string
	}{
		{category("other", "", 0), "", ""},
		{category("other", "nobody", 5), "category other 5/0 block", ""},
		{category("web.a", "shop", 5), "category web.a 5/0 block, prefix web. 20/0 sample, owner shop 10/0 throttle", "prefix web. 5/0 sample, owner shop 0/3 throttle"},
		{category("web.shop.a", "", 0), "prefix web.shop. 30/0 block", ""},
		{category("web", "", 0), "", ""},
		{category("_audit", "shop", 5), "category _audit 5/0 block", ""},
		{category("new.a", "both", 0), "prefix new. 50/0 block", ""}, // what a newer program has set
		{once, "prefix web. 20/0 block, owner shop 10/0 throttle", "prefix web. 5/0 block, owner shop 0/3 throttle"},
	} {
		if got := show(AppendWriteLimits(nil, tc.of, tenants)); got != tc.write {
			t.Errorf("writing to %s: %q, want %q", tc.of.GetName(), got, tc.write)
		}
		if got := show(AppendReadLimits(nil, tc.of, tenants)); got != tc.read {
			t.Errorf("reading of %s: %q, want %q", tc.of.GetName(), got, tc.read)
		}
	}
	if NewTenants(nil) != nil || AppendWriteLimits(nil, category("web.a", "shop", 0), nil) != nil {
		t.Error("there are limits without quotas")
	}
	keys := map[Key]bool{}
	for _, l := range AppendWriteLimits(nil, category("web.a", "shop", 5), tenants) {
		keys[l.Key] = true
	}
	if len(keys) != 3 || !keys[Key{Category: 7}] || !keys[Key{Tenant: "web.*"}] || !keys[Key{Tenant: "owner=shop"}] {
		t.Errorf("keys %v", keys)
	}
}

// TestLongestPrefix: whatever prefixes there are, a name is under the longest one that it begins with.
func TestLongestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching("[ab]{1,6}")
		var quotas []*scribev1.TenantQuota
		prefixes := rapid.SliceOfN(name, 0, 20).Draw(t, "prefixes")
		for _, p := range prefixes {
			quotas = append(quotas, &scribev1.TenantQuota{Prefix: p, WriteBytesPerSecond: 1})
		}
		tenants, of := NewTenants(quotas), name.Draw(t, "name")
		want := ""
		for _, p := range prefixes {
			if strings.HasPrefix(of, p) && len(p) > len(want) {
				want = p
			}
		}
		if got, _ := tenants.QuotasOf(of, ""); got.GetPrefix() != want {
			t.Fatalf("%q is under %q, want %q of %q", of, got.GetPrefix(), want, prefixes)
		}
	})
}

// TestLimitsAllocateNothing: neither for categories without quotas beside those of tenants, nor for those that are under three.
func TestLimitsAllocateNothing(t *testing.T) {
	tenants := NewTenants([]*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 1}, {Prefix: "web.", WriteBytesPerSecond: 1, ReadRequestsPerSecond: 1}})
	var under [MaxLimits]Limit
	for want, c := range []*scribev1.Category{{Name: "other"}, {Name: "web.b"}, {Name: "web.a", Owner: "shop"}, {Name: "web.a", Owner: "shop", QuotaBytesPerSecond: 1}} {
		n := testing.AllocsPerRun(10, func() {
			if got := len(AppendWriteLimits(under[:0], c, tenants)); got != want {
				t.Errorf("%d limits, want %d", got, want)
			}
			AppendReadLimits(under[:0], c, tenants)
		})
		if n > 0 {
			t.Errorf("with %d limits %v allocations", want, n)
		}
	}
}

// TestBlockedBesideSampled: a quota that samples some categories lets pass what it must block of others, as long as that is less than its half, and no more than the quota in all.
// Where nothing is sampled there is no more than a burst.
func TestBlockedBesideSampled(t *testing.T) {
	tenants := NewTenants([]*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 100_000, Mode: modeSample}})
	sampled := AppendWriteLimits(nil, &scribev1.Category{Name: "a", Owner: "shop"}, tenants)[0]
	blocked := AppendWriteLimits(nil, &scribev1.Category{Name: "b", Owner: "shop", Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE}, tenants)[0]
	for _, offered := range []int64{30_000, 200_000} { // of what is blocked, a second
		qs, now := clocked(1)
		var passed [2]int64
		for ms := range 60_000 {
			*now = time.Duration(ms) * time.Millisecond
			qs.SampleParts(sampled, 1, func(int) int64 { return 1000 }, func(_ int, rate uint32) { // ten times the quota
				if rate > 0 && ms >= 10_000 {
					passed[0] += 1000
				}
			})
			if n, _ := qs.PassLeading(blocked, 1, func(int) int64 { return offered / 1000 }); n == 1 && ms >= 10_000 {
				passed[1] += offered / 1000
			}
		}
		if sum := passed[0] + passed[1]; sum < 4_700_000 || sum > 5_300_000 {
			t.Errorf("of %d offered a second: %v pass in 50 seconds, want 5,000,000 in all", offered, passed)
		}
		if want := min(offered, 50_000) * 50; passed[1] < want*9/10 {
			t.Errorf("of %d offered a second that must be blocked %d pass in 50 seconds, want %d", offered, passed[1], want)
		}
	}
	qs, _ := clocked(1)
	if n, _ := qs.PassLeading(blocked, 300, func(int) int64 { return 1000 }); n != 100 {
		t.Errorf("%d KB pass at once where nothing is sampled", n)
	}
}

// BenchmarkThreeQuotas measures what three quotas cost a request.
func BenchmarkThreeQuotas(b *testing.B) {
	tenants := NewTenants([]*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 1 << 60}, {Prefix: "web.", WriteBytesPerSecond: 1 << 60}})
	c := &scribev1.Category{Name: "web.a", Owner: "shop", Id: 1, QuotaBytesPerSecond: 1 << 60}
	qs, _ := clocked(1)
	var under [MaxLimits]Limit
	b.ReportAllocs()
	for b.Loop() {
		for _, l := range AppendWriteLimits(under[:0], c, tenants) {
			qs.PassLeading(l, 1, func(int) int64 { return 1000 })
		}
	}
}

// TestRefusalNamesTheQuota: an error says whose quota refused, how much it is, and when to try again.
func TestRefusalNamesTheQuota(t *testing.T) {
	for _, tc := range []struct {
		limit Limit
		want  string
	}{
		{Limit{Kind: OfCategory, Name: "a", Bytes: 1 << 20}, "category a is over its quota of 1MiB/s: try again in 2s"},
		{Limit{Kind: OfOwner, Name: "shop", Bytes: 1 << 20, Requests: 5}, "category a is over the quota of its owner shop, 1MiB/s and 5 requests a second for all of its categories: try again in 2s"},
		{Limit{Kind: OfPrefix, Name: "web.", Requests: 5}, "category a is over the quota of names that begin with web., 5 requests a second for all of them: try again in 2s"},
	} {
		err := tc.limit.RefusalError("category a is", 2*time.Second)
		if info := rpc.Info(err); rpc.Message(err) != tc.want || info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() != 2*time.Second {
			t.Errorf("%q, %v; want %q", rpc.Message(err), info, tc.want)
		}
	}
}

// TestRefund: what a later quota refused is there again, is not told as passed, and never more than a burst.
func TestRefund(t *testing.T) {
	qs, now := clocked(2)
	l := Limit{Key: Key{Tenant: "owner=shop"}, Bytes: 2000, Requests: 4} // half of it is this process's
	pass := func(n int) int {
		passed, _ := qs.PassLeading(l, n, func(int) int64 { return 400 })
		return passed
	}
	if n := pass(3); n != 3 {
		t.Fatalf("%d passed", n)
	}
	if n := pass(1); n != 0 {
		t.Fatal("over the quota something passes")
	}
	qs.Refund([]Limit{l}, 800, false)
	if n := pass(1); n != 1 {
		t.Error("what was given back can't be used")
	}
	if n := pass(1); n != 0 {
		t.Error("more requests pass than there are")
	}
	qs.Refund([]Limit{l}, 400, true)
	if n := pass(1); n != 1 {
		t.Error("a request that was given back can't be used")
	}
	*now = time.Second
	if r := qs.CollectDemands(); len(r.Demands) != 1 || r.Demands[0].Passed < 0.399 || r.Demands[0].Passed > 0.501 {
		t.Errorf("told as passed: %+v", r.Demands)
	}
	*now = time.Hour
	qs.Refund([]Limit{l, {Key: Key{Category: 9}}}, 1<<40, true)
	if n := pass(5); n != 3 {
		t.Errorf("%d of 400 bytes passed after a refund beyond the burst of 1000", n)
	}
	for range 3 {
		qs.Refund([]Limit{l}, 1, true)
	}
	*now += time.Second
	if r := qs.CollectDemands(); len(r.Demands) != 1 || r.Demands[0].Passed != 0 {
		t.Errorf("less than nothing is told as passed: %+v", r.Demands)
	}
}

// TestTenantsAreReported: what is wanted of a tenant's quota is told beside what is wanted of categories', and its lease raises the share.
func TestTenantsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		qs := NewRegistry(func() time.Duration { return time.Since(begin) }, func() int { return 4 }, 1<<20)
		f := &fakeDivider{share: 1, calls: make(chan *scribev1.ShareQuotasRequest, 1000)}
		r := StartReporter(qs, f, "m", scribev1.Role_ROLE_WRITEPROXY, slog.New(slog.DiscardHandler))
		defer r.Stop()
		tenant, category := Limit{Key: Key{Tenant: "web.*"}, Bytes: 1000}, Limit{Key: Key{Category: 1}, Bytes: 1000}
		passed := 0
		for range 100 {
			n, _ := qs.PassLeading(tenant, 10, func(int) int64 { return 10 })
			passed += n
			qs.PassLeading(category, 1, func(int) int64 { return 10 })
			<-time.After(100 * time.Millisecond)
		}
		if passed < 900 || passed > 1100 {
			t.Errorf("%d parts of 10 bytes passed in ten seconds, want the whole quota", passed)
		}
		var tenants, categories bool
		for range len(f.calls) {
			req := <-f.calls
			for _, d := range req.GetTenants() {
				tenants = tenants || d.GetTenant() == "web.*" && d.GetCategory() == 0
			}
			for _, d := range req.GetDemands() {
				if categories = true; d.GetTenant() != "" {
					t.Errorf("a tenant among the categories: %v", d)
				}
			}
		}
		if !tenants || !categories {
			t.Errorf("told of tenants: %v, of categories: %v", tenants, categories)
		}
	})
}
