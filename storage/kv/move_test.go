package kv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
	"scribe/storage/kv/memkv"
	"scribe/storage/kv/pebblekv"
)

// contentOf returns the values of a store, and its revision.
func contentOf(t *testing.T, s kv.Store) (values map[string]string, entries map[string]uint64, revision uint64) {
	t.Helper()
	values, entries = map[string]string{}, map[string]uint64{}
	for e, err := range kv.All(t.Context(), s, "") {
		if err != nil {
			t.Fatal(err)
		}
		values[e.Key], entries[e.Key] = string(e.Value), e.Revision
	}
	page, err := s.Range(t.Context(), kv.KeyRange{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	return values, entries, page.Revision
}

// cutStore is a store that fails after a number of transactions.
type cutStore struct {
	kv.Store

	left int
}

var errPlanted = errors.New("planted")

// Commit implements kv.Store.
func (s *cutStore) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if s.left--; s.left < 0 {
		return 0, errPlanted
	}
	return s.Store.Commit(ctx, ops...)
}

// TestMove takes a store from a folder to etcd, and back: its entries are the same, and no revision goes back. The first copy is cut short, and repeated.
func TestMove(t *testing.T) {
	t.Parallel()
	own := memkv.New()
	for i := range 300 {
		mustPut(t, own, fmt.Sprintf("k/%d", i), fmt.Sprint(i))
	}
	mustPut(t, own, "k/7", "changed")
	if _, err := own.Commit(t.Context(), kv.Delete("k/8")); err != nil {
		t.Fatal(err)
	}
	values, _, last := contentOf(t, own)

	cfg := etcdkv.Config{Client: etcdtest.Start(t, 1).Client(t), Prefix: "scribe/moved/kv/"}
	if err := etcdkv.CreateBase(t.Context(), cfg, last); err != nil {
		t.Fatal(err)
	}
	shared, err := etcdkv.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, shared)
	if _, err := kv.CopyAll(t.Context(), own, &cutStore{shared, 1}); !errors.Is(err, errPlanted) {
		t.Errorf("a copy that fails: %v", err)
	}
	if n, err := kv.CopyAll(t.Context(), own, shared); err != nil || n != 299 {
		t.Fatalf("copied %d entries, %v", n, err)
	}
	got, revisions, newest := contentOf(t, shared)
	if fmt.Sprint(got) != fmt.Sprint(values) {
		t.Errorf("etcd has %v, want %v", got, values)
	}
	for key, r := range revisions {
		if r <= last || r > newest {
			t.Errorf("%s has revision %d, outside of %d to %d", key, r, last, newest)
		}
	}
	mustPut(t, shared, "k/9", "there")

	for range 2 {
		if err := etcdkv.EndStore(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	_, err = shared.Commit(t.Context(), kv.Put("late", nil))
	_, cerr := shared.Commit(t.Context(), kv.Put("late", nil).If(0))
	if !errors.Is(err, etcdkv.ErrEnded) || !errors.Is(cerr, etcdkv.ErrEnded) {
		t.Errorf("transactions of a store that has ended: %v, %v", err, cerr)
	}
	values, revisions, newest = contentOf(t, shared)
	back := pebblekv.DefaultConfig("kv")
	deps := pebblekv.Deps{FS: vfs.NewMem()}
	if err := pebblekv.RestoreFrom(t.Context(), back, deps, shared); err != nil {
		t.Fatal(err)
	}
	if err := pebblekv.RestoreFrom(t.Context(), back, deps, shared); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("restored into a folder with entries: %v", err)
	}
	again, err := pebblekv.Open(back, deps)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, again)
	got, same, restored := contentOf(t, again)
	if fmt.Sprint(got) != fmt.Sprint(values) || fmt.Sprint(same) != fmt.Sprint(revisions) || got["k/9"] != "there" {
		t.Errorf("the folder has %v at %v, want %v at %v", got, same, values, revisions)
	}
	if r := mustPut(t, again, "k/9", "again"); restored <= newest || r <= restored {
		t.Errorf("revisions go on at %d, then %d, after %d", restored, r, newest)
	}
}
