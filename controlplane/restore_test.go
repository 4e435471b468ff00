package controlplane

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

func TestWriteAndReadState(t *testing.T) {
	var s StoredCategories
	for id := range uint32(300) { // more than one transaction, by number and by size
		c := &scribev1.Category{Name: fmt.Sprintf("category-%03d", id+1), Id: id + 1, Shards: 2, Owner: "somebody"}
		if id%100 == 0 {
			c.Schema = strings.Repeat("x", 1<<20)
		}
		s.Categories = append(s.Categories, c)
	}
	s.Dropped = []*scribev1.Category{{Name: "old", Id: 400}}
	s.NextID = 401
	store := memkv.New()
	defer store.Close()
	if err := WriteState(t.Context(), store, s); err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b *scribev1.Category) bool {
		a = proto.CloneOf(a)
		a.Revision = 0
		return proto.Equal(a, b)
	}
	if !slices.EqualFunc(got.Categories, s.Categories, same) || !slices.EqualFunc(got.Dropped, s.Dropped, same) || got.NextID != 401 {
		t.Errorf("%d categories, %d dropped, next id %d", len(got.Categories), len(got.Dropped), got.NextID)
	}
	for _, key := range []string{"slot/00001", "group/a"} {
		if _, err := store.Commit(t.Context(), kv.Put(key, []byte(key))); err != nil {
			t.Fatal(err)
		}
	}
	rest := memkv.New()
	defer rest.Close()
	if err := CopyRest(t.Context(), store, rest, nil); err != nil {
		t.Fatal(err)
	}
	page, err := rest.Range(t.Context(), kv.KeyRange{})
	if err != nil || len(page.Entries) != 2 || string(page.Entries[0].Value) != "group/a" || string(page.Entries[1].Value) != "slot/00001" {
		t.Errorf("the rest: %+v, %v", page, err)
	}
	if err := WriteState(t.Context(), store, s); err == nil {
		t.Error("a store that holds categories was written to")
	}
	for name, bad := range map[string]StoredCategories{
		"no next id":        {},
		"an id too high":    {NextID: 5, Categories: []*scribev1.Category{{Name: "a", Id: 5}}},
		"a name that isn't": {NextID: 5, Categories: []*scribev1.Category{{Name: "a b", Id: 1}}},
	} {
		empty := memkv.New()
		if err := WriteState(t.Context(), empty, bad); err == nil {
			t.Errorf("%s: written", name)
		}
		if err := empty.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestWriteStateHasTenants: quotas of tenants that a copy has are in force in the store that is made of it; those that can't be are refused.
func TestWriteStateHasTenants(t *testing.T) {
	store := newStore(t)
	s := StoredCategories{NextID: 1, Tenants: &scribev1.TenantQuotas{Quotas: []*scribev1.TenantQuota{{Owner: "shop", WriteBytesPerSecond: 5}}}}
	if err := WriteState(t.Context(), store, s); err != nil {
		t.Fatal(err)
	}
	wantQuotas(t, start(t, store, nil), "owner=shop:5")
	s.Tenants.Quotas[0].Owner = "\xff"
	if err := WriteState(t.Context(), newStore(t), s); err == nil {
		t.Error("a quota that can't be read was written")
	}
}
