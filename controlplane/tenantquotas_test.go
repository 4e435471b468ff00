package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// showQuotas is quotas in their order, by tenant and bytes for writing.
func showQuotas(quotas []*scribev1.TenantQuota) string {
	out := make([]string, len(quotas))
	for i, q := range quotas {
		out[i] = fmt.Sprintf("%s:%d", quota.TenantText(q.GetOwner(), q.GetPrefix()), q.GetWriteBytesPerSecond())
	}
	return strings.Join(out, " ")
}

func setQuota(t *testing.T, c *ControlPlane, q *scribev1.TenantQuota) *scribev1.TenantQuota {
	t.Helper()
	res, err := c.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: q})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetQuota()
}

func wantQuotas(t *testing.T, c *ControlPlane, want string) {
	t.Helper()
	res, err := c.ListTenantQuotas(t.Context(), &scribev1.ListTenantQuotasRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := showQuotas(res.GetQuotas()); got != want {
		t.Errorf("quotas %q, want %q", got, want)
	}
}

// TestTenantQuotas: quotas are set, replaced, listed in order and removed, and outlive the control plane.
func TestTenantQuotas(t *testing.T) {
	store := newStore(t)
	c := start(t, store, nil)
	wantQuotas(t, c, "")
	if q := setQuota(t, c, &scribev1.TenantQuota{Prefix: "web.", WriteBytesPerSecond: 1}); q.GetMode() != scribev1.QuotaMode_QUOTA_MODE_BLOCK {
		t.Errorf("without a mode it became %v", q)
	}
	setQuota(t, c, &scribev1.TenantQuota{Owner: "shop", WriteBytesPerSecond: 2})
	setQuota(t, c, &scribev1.TenantQuota{Owner: "ads", ReadRequestsPerSecond: 3})
	setQuota(t, c, &scribev1.TenantQuota{Prefix: "web.", WriteBytesPerSecond: 4, Mode: scribev1.QuotaMode_QUOTA_MODE_SAMPLE})
	wantQuotas(t, c, "owner=ads:0 owner=shop:2 web.*:4")
	if _, err := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{Owner: "ads"}); err != nil {
		t.Fatal(err)
	}
	_, err := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{Owner: "ads"})
	wantReason(t, err, scribev1.Reason_REASON_MISSING, "owner=ads", "scribe quota list")
	stop(t, c)
	wantQuotas(t, start(t, store, nil), "owner=shop:2 web.*:4")
}

// TestInvalidTenantQuotas: every violation is named, and nothing is stored.
func TestInvalidTenantQuotas(t *testing.T) {
	c := start(t, newStore(t), nil)
	for _, tc := range []struct {
		quota *scribev1.TenantQuota
		says  []string
	}{
		{nil, []string{"is missing"}},
		{&scribev1.TenantQuota{}, []string{"owner or a prefix", "no limit"}},
		{&scribev1.TenantQuota{Owner: "a", Prefix: "b", WriteBytesPerSecond: 1}, []string{"not both"}},
		{&scribev1.TenantQuota{Owner: strings.Repeat("a", maxOwner+1), WriteBytesPerSecond: 1}, []string{"owner: "}},
		{&scribev1.TenantQuota{Owner: "\xff", WriteBytesPerSecond: 1}, []string{"UTF-8"}},
		{&scribev1.TenantQuota{Prefix: "web*", WriteBytesPerSecond: 1}, []string{"prefix: "}},
		{&scribev1.TenantQuota{Prefix: "_audit", WriteBytesPerSecond: 1}, []string{"prefix: "}},
		{&scribev1.TenantQuota{Prefix: "web.", WriteBytesPerSecond: 1, Mode: 4}, []string{"mode: "}},
	} {
		_, err := c.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: tc.quota})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, tc.says...)
	}
	_, err := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "owner or a prefix")
	wantQuotas(t, c, "")
}

// TestTenantQuotasAreBounded: one more than the limit is refused; one that is there can still be changed.
func TestTenantQuotasAreBounded(t *testing.T) {
	store := newStore(t)
	full := &scribev1.TenantQuotas{}
	for i := range maxTenantQuotas {
		full.Quotas = append(full.Quotas, &scribev1.TenantQuota{Owner: fmt.Sprintf("owner-%04d", i), WriteBytesPerSecond: 1})
	}
	value, err := proto.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), kv.Put(tenantQuotasKey, value)); err != nil {
		t.Fatal(err)
	}
	c := start(t, store, nil)
	_, err = c.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Owner: "one more", WriteBytesPerSecond: 1}})
	wantReason(t, err, scribev1.Reason_REASON_OVERLOADED, "the limit")
	setQuota(t, c, &scribev1.TenantQuota{Owner: "owner-0500", WriteBytesPerSecond: 7})
}

// TestTenantQuotasAtOnce: of changes at the same time none is lost.
func TestTenantQuotasAtOnce(t *testing.T) {
	store := newStore(t)
	a, b := start(t, store, nil), start(t, store, nil)
	errs := make(chan error, 8)
	for i := range 8 {
		c := []*ControlPlane{a, b}[i%2]
		go func() {
			_, err := c.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Owner: fmt.Sprint(i), WriteBytesPerSecond: 1}})
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wantQuotas(t, a, "owner=0:1 owner=1:1 owner=2:1 owner=3:1 owner=4:1 owner=5:1 owner=6:1 owner=7:1")
}

// TestTenantQuotasOfNewerPrograms: what this program does not understand is told, and outlives its changes.
func TestTenantQuotasOfNewerPrograms(t *testing.T) {
	store := newStore(t)
	newer := &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{
		{WriteBytesPerSecond: 9}, {Owner: "shop", Mode: 9, WriteBytesPerSecond: 5}, {Owner: "bare"}, {Owner: "ads", WriteBytesPerSecond: 4},
	}}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 7)
	newer.ProtoReflect().SetUnknown(unknown)
	newer.Quotas[0].ProtoReflect().SetUnknown(unknown)
	value, err := proto.Marshal(newer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Commit(t.Context(), kv.Put(tenantQuotasKey, value)); err != nil {
		t.Fatal(err)
	}
	c := start(t, store, nil)
	wantTold := func(want *scribev1.TenantQuotas) {
		t.Helper()
		e, err := store.Get(t.Context(), tenantQuotasKey)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeTenantQuotas(e.Value); err != nil || !proto.Equal(got, want) {
			t.Errorf("the store has %v, %v, want %v", got, err, want)
		}
	}
	if set, _ := c.tenants.read(); !proto.Equal(set, newer) {
		t.Errorf("watches are told %v, want %v", set, newer)
	}
	setQuota(t, c, &scribev1.TenantQuota{Owner: "ads", WriteBytesPerSecond: 6, Mode: scribev1.QuotaMode_QUOTA_MODE_BLOCK})
	newer.Quotas[3].WriteBytesPerSecond, newer.Quotas[3].Mode = 6, scribev1.QuotaMode_QUOTA_MODE_BLOCK
	wantTold(newer)
	if _, err := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{Owner: "ads"}); err != nil {
		t.Fatal(err)
	}
	newer.Quotas = newer.Quotas[:3]
	wantTold(newer)
}

// TestWatchTellsTenantQuotas: a watch gets the quotas with the complete set of categories, and every change; damage changes nothing.
func TestWatchTellsTenantQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		setQuota(t, c, &scribev1.TenantQuota{Owner: "shop", WriteBytesPerSecond: 1})
		synctest.Wait()
		messages, _ := watchOf(t.Context(), c, nil)
		want := func(want string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for range len(messages) {
				if msg := <-messages; msg.GetTenantQuotas() != nil {
					got = append(got, fmt.Sprintf("%v %s", msg.GetSynced(), showQuotas(msg.GetTenantQuotas().GetQuotas())))
				}
			}
			if !slices.Equal(got, []string{want}) {
				t.Fatalf("the watch tells %q, want %q", got, want)
			}
		}
		want("true owner=shop:1")
		setQuota(t, c, &scribev1.TenantQuota{Prefix: "web.", WriteBytesPerSecond: 2})
		want("false owner=shop:1 web.*:2")
		if _, err := store.Commit(t.Context(), kv.Put(tenantQuotasKey, []byte{0xff})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(messages) > 0 {
			t.Errorf("of damage the watch tells %v", <-messages)
		}
		_, err := c.ListTenantQuotas(t.Context(), &scribev1.ListTenantQuotasRequest{})
		wantReason(t, err, scribev1.Reason_REASON_CORRUPT, tenantQuotasKey)
		_, set := c.SetTenantQuota(t.Context(), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Prefix: "web.", WriteBytesPerSecond: 3}})
		_, removed := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{Prefix: "web."})
		for _, err := range []error{set, removed} {
			wantReason(t, err, scribev1.Reason_REASON_CORRUPT, tenantQuotasKey, "nothing is changed", "docs/operations.md")
		}
		// Another control plane, which begins with the damage, does not say that there are none.
		other := run(t, store, nil)
		synctest.Wait()
		messages, _ = watchOf(t.Context(), other, nil)
		synctest.Wait()
		synced := false
		for range len(messages) {
			msg := <-messages
			if synced = synced || msg.GetSynced(); msg.GetTenantQuotas() != nil {
				t.Errorf("of quotas that are not known the watch tells %v", msg)
			}
		}
		if !synced {
			t.Error("the set is not complete")
		}
		value, err := proto.Marshal(&scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Prefix: "web.", WriteBytesPerSecond: 3}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Commit(t.Context(), kv.Put(tenantQuotasKey, value)); err != nil {
			t.Fatal(err)
		}
		want("false web.*:3")
		if _, err := c.RemoveTenantQuota(t.Context(), &scribev1.RemoveTenantQuotaRequest{Prefix: "web."}); err != nil {
			t.Fatal(err)
		}
		want("false ")
		stop(t, other)
		stop(t, c)
	})
}

// TestTenantQuotaIsShared: a tenant's quota is divided like a category's, beside it, and a report may name both.
func TestTenantQuotaIsShared(t *testing.T) {
	c := start(t, newStore(t), nil)
	for _, id := range []string{"busy", "idle"} {
		_, err := c.Join(t.Context(), &scribev1.JoinRequest{
			Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, SharesQuotas: true}, Ttl: durationpb.New(maxTTL),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	res, err := c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{
		Member: "busy", Role: scribev1.Role_ROLE_WRITEPROXY,
		Demands: []*scribev1.QuotaDemand{{Category: 1, Wanted: 0.1}}, Tenants: []*scribev1.QuotaDemand{{Tenant: "owner=shop", Wanted: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	shares := map[string]float64{}
	for _, l := range res.GetLeases() {
		shares[fmt.Sprint(l.GetCategory(), l.GetTenant())] = l.GetShare()
	}
	if shares["0owner=shop"] < 0.9 || shares["1"] < 0.9 {
		t.Errorf("leases %v, want all of what nobody else wants", shares)
	}
	for _, d := range []*scribev1.QuotaDemand{{Category: 1, Tenant: "web.*"}, {Tenant: strings.Repeat("x", maxTenantText+1)}} {
		_, err := c.ShareQuotas(t.Context(), &scribev1.ShareQuotasRequest{Member: "busy", Role: scribev1.Role_ROLE_WRITEPROXY, Tenants: []*scribev1.QuotaDemand{d}})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "demands: ")
	}
}
