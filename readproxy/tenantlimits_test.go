package readproxy

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// limitTenant returns a server whose category a is under a tenant's quota, which is given in payloads, and n payloads of it.
func limitTenant(t *testing.T, n int, cat *scribev1.Category, q *scribev1.TenantQuota) (h *harness, encoded [][]byte, size uint64) {
	t.Helper()
	var tenants *quota.Tenants
	cat.Name, cat.Id, cat.Shards, cat.Owner = "a", 1, 1, "shop"
	h = newHarnessWith(t, func(d *Deps) {
		d.Categories, d.Tenants = limited{cat}, func() *quota.Tenants { return tenants }
	})
	var blocks [][]payload
	for range n {
		blocks = append(blocks, []payload{newPayload(t, "a", 10)})
	}
	encoded, pointers := h.put(pointer.CodecNone, blocks...)
	size = uint64(pointers[0].Length)
	cat.ReadQuotaBytesPerSecond *= size
	q.ReadBytesPerSecond *= size
	tenants = quota.NewTenants([]*scribev1.TenantQuota{q})
	return h, encoded, size
}

// TestTenantReadQuota: a tenant's quota for reading cuts, refuses and counts as a category's does, and says that it is the tenant's.
func TestTenantReadQuota(t *testing.T) {
	for _, tc := range []struct {
		quota *scribev1.TenantQuota
		says  string
		kind  quota.Kind
	}{
		{&scribev1.TenantQuota{Owner: "shop", ReadBytesPerSecond: 4}, "readers of category a are over the quota of its owner shop", quota.OfOwner},
		{&scribev1.TenantQuota{Prefix: "a", ReadBytesPerSecond: 4, Mode: sample}, "over the quota of names that begin with a", quota.OfPrefix}, // samples are not accepted
	} {
		synctest.Test(t, func(t *testing.T) {
			h, enc, size := limitTenant(t, 10, &scribev1.Category{}, tc.quota)
			if got, err := h.fetchA(false, enc...); err != nil || len(got) != 4 {
				t.Fatalf("%d payloads, %v", len(got), err)
			}
			_, err := h.fetchA(false, enc[4:]...)
			if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("beyond the quota: %v, want %q", err, tc.says)
			}
			if n := h.metric("over_quota_bytes_total", string(tc.kind)); n != float64(12*size) {
				t.Errorf("%v bytes are counted, want those of 12 payloads of %d", n, size)
			}
		})
	}
}

// TestReadRefunds: what the owner's quota refuses or cuts off is not charged to the category's.
func TestReadRefunds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &scribev1.TenantQuota{Owner: "shop", ReadBytesPerSecond: 2}
		cat := &scribev1.Category{ReadQuotaBytesPerSecond: 6, ReadQuotaRequestsPerSecond: 3}
		h, enc, size := limitTenant(t, 6, cat, q)
		if got, err := h.fetchA(false, enc...); err != nil || len(got) != 2 {
			t.Fatalf("%d payloads, %v", len(got), err)
		}
		for range 50 {
			if _, err := h.fetchA(false, enc...); err == nil || !strings.Contains(err.Error(), "owner shop") {
				t.Fatalf("beyond the owner's quota: %v", err)
			}
		}
		l := quota.AppendReadLimits(nil, cat, nil)[0]
		if n, _ := h.server.quotas.PassLeading(l, 10, func(int) int64 { return int64(size) }); n != 4 {
			t.Errorf("%d payloads are left of the category's quota of 6, want 4", n)
		}
	})
}

// TestSampledTwice: two quotas that sample multiply their rates, and the second one sees only what the first one kept.
func TestSampledTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &scribev1.TenantQuota{Owner: "shop", ReadBytesPerSecond: 5, Mode: sample}
		h, enc, _ := limitTenant(t, 10, &scribev1.Category{ReadQuotaBytesPerSecond: 20, ReadQuotaMode: sample}, q)
		kept, stands := 0, 0
		for range 200 {
			got, err := h.fetchA(true, enc...)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range got {
				if !p.GetSampledOut() {
					kept++
					stands += int(max(p.GetSampleRate(), 1))
				}
			}
			<-time.After(100 * time.Millisecond)
		}
		if kept < 90 || kept > 140 {
			t.Errorf("%d payloads were kept, want about 100 in 20 s", kept)
		}
		if stands < 1600 || stands > 2400 {
			t.Errorf("they stand for %d payloads, 2,000 were asked for", stands)
		}
	})
}
