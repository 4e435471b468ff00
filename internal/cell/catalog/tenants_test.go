package catalog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

// TestTenantsThatCannotBeKept: the copy of the categories is written although that of the quotas can't be.
func TestTenantsThatCannotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "catalog")
		if err := os.MkdirAll(filepath.Join(file+tenantsSuffix, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		p := newPlane()
		v := newView(t, p, func(c *ViewConfig) { c.File = file })
		closeView := runView(t, v)
		<-v.Ready()
		synctest.Wait()
		if err := os.RemoveAll(file); err != nil { // a copy of before there were quotas
			t.Fatal(err)
		}
		p.tell(&scribev1.WatchCategoriesResponse{TenantQuotas: &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 5}}}})
		synctest.Wait()
		closeView()
		if _, err := os.Stat(file); err != nil {
			t.Error("the categories are not kept: ", err)
		}
		select {
		case <-newView(t, newPlane(), func(c *ViewConfig) { c.File = file }).Ready():
		default:
			t.Error("the categories that were kept are not there")
		}
	})
}

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
		// The file of the categories says nothing of quotas, so that older programs read it, and without that of the quotas none are known.
		if err := os.WriteFile(file+tenantsSuffix, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		bare := newView(t, newPlane(), func(c *ViewConfig) { c.File = file })
		if bare.Tenants() != nil {
			t.Error("there are quotas of a damaged file")
		}
		select {
		case <-bare.Ready():
		default:
			t.Error("without quotas there are no categories")
		}
		runView(t, bare)()
		if b, err := os.ReadFile(file + tenantsSuffix); err != nil || string(b) != "damaged" {
			t.Errorf("quotas that are not known are written: %q, %v", b, err)
		}
		p.set(func(*plane) {})
	})
}

// goldenTenants is the file of exampleTenants in version 1.
const goldenTenants = "53435451" + "01000000" + "14000000" + "0a080a0473686f701805" + "0a0812047765622e2006" + "377a7c66"

var exampleTenants = &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 5}, {Prefix: "web.", ReadBytesPerSecond: 6}}}

// TestFileOfTenants: the file is as its format says, and no damage goes unnoticed.
func TestFileOfTenants(t *testing.T) {
	file, err := encodeTenants(exampleTenants)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(file); got != goldenTenants {
		t.Errorf("%s, want %s", got, goldenTenants)
	}
	if got, err := decodeTenants(file); err != nil || !proto.Equal(got, exampleTenants) {
		t.Errorf("%v, %v", got, err)
	}
	for bit := range len(file) * 8 {
		b := bytes.Clone(file)
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeTenants(b); !errors.Is(err, errDamaged) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
	for n := range file {
		if _, err := decodeTenants(file[:n]); !errors.Is(err, errDamaged) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, err := decodeTenants(append(file, 0)); !errors.Is(err, errDamaged) {
		t.Errorf("a byte too many: %v", err)
	}
}

func FuzzDecodeTenants(f *testing.F) {
	file, err := encodeTenants(exampleTenants)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Fuzz(func(t *testing.T, file []byte) {
		if n := len(file) - 4; n >= 0 { // most of what a fuzzer finds fails at the checksum
			file = binary.LittleEndian.AppendUint32(bytes.Clone(file[:n]), crc32.Checksum(file[:n], castagnoli))
		}
		if _, err := decodeTenants(file); err != nil && !errors.Is(err, errDamaged) {
			t.Fatalf("%v does not match errDamaged", err)
		}
	})
}
