package catalog

import (
	"bytes"
	"encoding/hex"
	"path/filepath"
	"testing"
	"testing/synctest"

	scribev1 "scribe/proto/scribe/v1"
)

// TestTenants: a view has the quotas that the watch tells, keeps them while nothing is said of them, and begins with those of its file.
func TestTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "catalog")
		p := newPlane()
		v := newView(t, p, func(c *ViewConfig) { c.File = file })
		closeView := runView(t, v)
		<-v.Ready()
		want := func(v *View, bytes uint64) {
			t.Helper()
			synctest.Wait()
			_, q := v.Tenants().QuotasOf("a", "shop")
			if q.GetWriteBytesPerSecond() != bytes {
				t.Errorf("the quota is %v, want %d bytes", q, bytes)
			}
		}
		tell := func(bytes uint64) {
			p.tell(&scribev1.WatchCategoriesResponse{TenantQuotas: &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: bytes}}}})
		}
		want(v, 0)
		tell(5)
		want(v, 5)
		tell(6)
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true})
		want(v, 6)
		p.tell(&scribev1.WatchCategoriesResponse{Synced: true}) // of an older control plane
		want(v, 6)
		closeView()
		other := newView(t, newPlane(), func(c *ViewConfig) { c.File = file })
		want(other, 6)
		closeOther := runView(t, other)
		closeOther()
		p.set(func(*plane) {})
	})
}

// exampleTenants is exampleSnapshot with quotas of tenants.
func exampleTenants() FileCopy {
	s := exampleSnapshot
	s.Tenants = &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 5}, {Prefix: "web.", ReadBytesPerSecond: 6}}}
	return s
}

// goldenTenants is exampleTenants in version 1.
const goldenTenants = "53434154" + "01000000" + "0201000000000000" + "0700000000000000" + "02000000" + "14000000" +
	"09000000" + "0a0161" + "1003" + "1809" + "3001" + "0a000000" + "0a0162" + "1004" + "188202" + "3002" + "0a080a0473686f701805" + "0a0812047765622e2006" + "cd0cfea9"

// TestFileHasTenants: the file keeps quotas behind the categories, and finds damage in them.
func TestFileHasTenants(t *testing.T) {
	s := exampleTenants()
	file := encoded(t, s)
	if got := hex.EncodeToString(file); got != goldenTenants {
		t.Errorf("%s, want %s", got, goldenTenants)
	}
	got, err := decodeSnapshot(bytes.NewReader(file))
	if err != nil || !equalSnapshots(got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range file {
		damaged := bytes.Clone(file)
		damaged[i] ^= 0x40
		if _, err := decodeSnapshot(bytes.NewReader(damaged)); err == nil {
			t.Errorf("damage of byte %d is not found", i)
		}
		if _, err := decodeSnapshot(bytes.NewReader(file[:i])); err == nil {
			t.Errorf("an end after %d bytes is not found", i)
		}
	}
}
