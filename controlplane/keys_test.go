package controlplane

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// TestGoldenValues: what is stored is read by later versions.
func TestGoldenValues(t *testing.T) {
	member := &scribev1.Member{
		Id: "m", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_READPROXY}, Url: "http://h:1", Slot: 42, JoinedAt: 7, Version: "v1",
	}
	const golden = `{"version":1,"id":"m","roles":[3,5],"url":"http://h:1","program":"v1","joined_at":7,"ttl_us":10000000,"expired_at":9}`
	value, err := encodeSlot(member, 10*time.Second, 9)
	if err != nil || string(value) != golden {
		t.Errorf("%s, %v; want %s", value, err, golden)
	}
	m, ttl, expired, err := decodeSlot("slot/00042", value)
	if err != nil || !proto.Equal(m, member) || ttl != 10*time.Second || expired != 9 {
		t.Errorf("%v %v %d, %v", m, ttl, expired, err)
	}
	cat := &scribev1.Category{Name: "a", Id: 3, Revision: 9, Shards: 1, Retention: durationpb.New(time.Hour), CreatedAt: 5}
	const goldenCategory = "\n\x01a\x10\x03\x2a\x03\x08\x90\x1c0\x01`\x05"
	value, err = encodeCategory(cat)
	if err != nil || string(value) != goldenCategory {
		t.Errorf("%q, %v; want %q", value, err, goldenCategory)
	}
	if got, err := decodeCategory("a", value, 9); err != nil || !proto.Equal(got, cat) {
		t.Errorf("%v, %v; want %v", got, err, cat)
	}
	if categoryKey("a") != "category/a" || droppedKey(7) != "dropped/0000000007" || slotKey(65) != "slot/00065" || retiringKey("a") != "retiring/a" {
		t.Error("the keys of the store have changed")
	}
}

func TestDamagedValues(t *testing.T) {
	for _, value := range []string{"", "0", "-1", "01", "4294967297", "x", strings.Repeat("9", 100)} {
		if n, err := decodeNextID([]byte(value)); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("counter %q: %d, %v", value, n, err)
		}
	}
	if n, err := decodeNextID([]byte("4294967296")); err != nil || n != maxID+1 {
		t.Errorf("%d, %v", n, err)
	}
	const good = `{"version":1,"id":"m","roles":[3],"joined_at":7,"ttl_us":10000000}`
	for key, value := range map[string]string{
		"slot/00000": good, "slot/65000": good, "slot/1": good, "slot/0000x": good,
		"slot/00001": strings.Replace(good, `"version":1`, `"version":2`, 1), "slot/00002": strings.Replace(good, `"m"`, `""`, 1),
		"slot/00003": strings.Replace(good, `10000000`, `1`, 1), "slot/00004": good[:10],
	} {
		if m, _, _, err := decodeSlot(key, []byte(value)); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%s: %v, %v", key, m, err)
		}
	}
	for _, c := range []*scribev1.Category{{Name: "a"}, {Name: "b", Id: 1}} {
		value, err := encodeCategory(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeCategory("a", value, 1); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%v, %v", got, err)
		}
		if got, err := decodeDeleted("dropped/0000000007", value); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%v, %v", got, err)
		}
		if got, err := decodeDeleted("retiring/a", value); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%v, %v", got, err)
		}
	}
	if got, err := decodeDeleted("retiring/a", []byte("\xff")); !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestUnknownFieldsSurvive: an update by this program keeps what a newer one has stored in a category.
func TestUnknownFieldsSurvive(t *testing.T) {
	store := newStore(t)
	c := start(t, store, nil)
	cat := create(t, c, "a")
	value, err := encodeCategory(cat)
	if err != nil {
		t.Fatal(err)
	}
	newer := append(value, 0x82, 0x7d, 3, 'n', 'e', 'w') // field 2000
	if _, err := store.Commit(t.Context(), kv.Put(categoryKey("a"), newer)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Owner: new("me")}); err != nil {
		t.Fatal(err)
	}
	e, err := store.Get(t.Context(), categoryKey("a"))
	if err != nil || !strings.Contains(string(e.Value), "new") || !strings.Contains(string(e.Value), "me") {
		t.Errorf("%q, %v", e.Value, err)
	}
}

func FuzzDecodeCategory(f *testing.F) {
	value, err := encodeCategory(&scribev1.Category{Name: "a", Id: 3, Shards: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a", value)
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		c, err := decodeCategory(name, value, 5)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatalf("%v does not match ErrCorrupt", err)
			}
			return
		}
		again, err := encodeCategory(c)
		if err != nil {
			t.Fatal(err)
		}
		if c2, err := decodeCategory(name, again, 5); err != nil || !proto.Equal(c, c2) {
			t.Fatalf("%v became %v, %v", c, c2, err)
		}
	})
}

func FuzzDecodeRetiring(f *testing.F) {
	value, err := encodeCategory(&scribev1.Category{Name: "a", Id: 3, Shards: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("retiring/a", value)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		c, err := decodeDeleted(key, value)
		switch {
		case err != nil && !errors.Is(err, kv.ErrCorrupt):
			t.Fatalf("%v does not match ErrCorrupt", err)
		case err == nil && (retiringKey(c.GetName()) != key || c.GetId() == 0):
			t.Fatalf("%q holds %v", key, c)
		}
	})
}

func FuzzDecodeSlot(f *testing.F) {
	f.Add("slot/00042", []byte(`{"version":1,"id":"m","roles":[3,5],"url":"http://h:1","program":"v1","joined_at":7,"ttl_us":10000000,"expired_at":9}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		m, ttl, expired, err := decodeSlot(key, value)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatalf("%v does not match ErrCorrupt", err)
			}
			return
		}
		again, err := encodeSlot(m, ttl, expired)
		if err != nil {
			t.Fatal(err)
		}
		if m2, ttl2, expired2, err := decodeSlot(key, again); err != nil || !proto.Equal(m, m2) || ttl != ttl2 || expired != expired2 {
			t.Fatalf("%v became %v, %v", m, m2, err)
		}
	})
}
