package kv_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"scribe/storage/kv"
)

// storeFactory opens stores of one engine.
type storeFactory struct {
	// Open returns an empty store. The suite closes it.
	Open func(t *testing.T) kv.Store
	// OpenShort returns an empty store that keeps at most 64 changes for watches.
	OpenShort func(t *testing.T) kv.Store
	// Reopen closes a store and opens it again with its stored state. Nil for an engine without persistence.
	Reopen func(t *testing.T, s kv.Store) kv.Store
}

// runSuite runs the acceptance suite: the tests that every engine must pass.
func runSuite(t *testing.T, h storeFactory) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, h storeFactory)
	}{
		{"Entries", testEntries},
		{"Conditions", testConditions},
		{"Transactions", testTransactions},
		{"NoChange", testNoChange},
		{"Limits", testLimits},
		{"Ownership", testOwnership},
		{"Range", testRange},
		{"RangeBytes", testRangeBytes},
		{"ReadAll", testReadAll},
		{"Reopen", testReopen},
		{"Closed", testClosed},
		{"WatchReplay", testWatchReplay},
		{"WatchWhole", testWatchWhole},
		{"WatchLive", testWatchLive},
		{"WatchEnds", testWatchEnds},
		{"WatchCompacted", testWatchCompacted},
		{"WatchSlow", testWatchSlow},
		{"WatchMirror", testWatchMirror},
		{"Counter", testCounter},
		{"Linearizable", testLinearizable},
		{"Model", testModel},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.test(t, h) })
	}
}

// openStore opens a store that is closed at the end of the test.
func openStore(t *testing.T, f func(t *testing.T) kv.Store) kv.Store {
	t.Helper()
	s := f(t)
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t *testing.T, s kv.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func mustCommit(t *testing.T, s kv.Store, ops ...kv.Op) uint64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), ops...)
	if err != nil {
		t.Fatalf("Commit: %v", err)
	}
	return revision
}

func mustPut(t *testing.T, s kv.Store, key, value string) uint64 {
	t.Helper()
	return mustCommit(t, s, kv.Put(key, []byte(value)))
}

// wantEntry checks an entry; an empty value means that it must not exist.
func wantEntry(t *testing.T, s kv.Store, key, value string, revision uint64) {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if value == "" {
		if !errors.Is(err, kv.ErrNotFound) {
			t.Fatalf("Get(%q) = %q, %v; want ErrNotFound", key, e.Value, err)
		}
		return
	}
	if err != nil || e.Key != key || string(e.Value) != value || e.Revision != revision {
		t.Fatalf("Get(%q) = %q %q revision %d, %v; want %q revision %d", key, e.Key, e.Value, e.Revision, err, value, revision)
	}
}

// wantRange checks a page: keys with their values, as "key=value".
func wantRange(t *testing.T, s kv.Store, r kv.KeyRange, more bool, want ...string) {
	t.Helper()
	p, err := s.Range(t.Context(), r)
	if err != nil {
		t.Fatalf("Range(%+v): %v", r, err)
	}
	var got []string
	for _, e := range p.Entries {
		got = append(got, e.Key+"="+string(e.Value))
		if e.Revision == 0 || e.Revision > p.Revision {
			t.Errorf("Range(%+v): %q has revision %d, the page %d", r, e.Key, e.Revision, p.Revision)
		}
	}
	if !slices.Equal(got, want) || p.More != more {
		t.Fatalf("Range(%+v) = %q more %v, want %q more %v", r, got, p.More, want, more)
	}
}

func testEntries(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	wantEntry(t, s, "a", "", 0)
	r1 := mustPut(t, s, "a", "1")
	if r1 == 0 {
		t.Fatal("a transaction has revision 0")
	}
	wantEntry(t, s, "a", "1", r1)
	r2 := mustPut(t, s, "b", "2")
	r3 := mustPut(t, s, "a", "3")
	if r2 <= r1 || r3 <= r2 {
		t.Fatalf("revisions %d, %d, %d do not grow", r1, r2, r3)
	}
	wantEntry(t, s, "a", "3", r3)
	wantEntry(t, s, "b", "2", r2)
	r4 := mustCommit(t, s, kv.Delete("a"))
	if r4 <= r3 {
		t.Fatalf("the deletion has revision %d after %d", r4, r3)
	}
	wantEntry(t, s, "a", "", 0)
	wantEntry(t, s, "b", "2", r2)
	r5 := mustCommit(t, s, kv.Put("empty", nil))
	if e, err := s.Get(t.Context(), "empty"); err != nil || len(e.Value) != 0 || e.Revision != r5 {
		t.Fatalf("an empty value: %+v, %v", e, err)
	}
}

// wantConflict checks that a transaction fails, and which conditions did not hold.
func wantConflict(t *testing.T, s kv.Store, ops []kv.Op, want ...kv.KeyConflict) {
	t.Helper()
	_, err := s.Commit(t.Context(), ops...)
	var conflict *kv.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, kv.ErrConflict) {
		t.Fatalf("Commit: %v, want a *ConflictError", err)
	}
	if !slices.Equal(conflict.Conflicts, want) {
		t.Fatalf("conflicts %+v, want %+v", conflict.Conflicts, want)
	}
	for _, c := range want {
		if !conflict.On(c.Key) || conflict.On(c.Key+"x") {
			t.Fatalf("On(%q) is wrong", c.Key)
		}
	}
}

func testConditions(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	r1 := mustCommit(t, s, kv.Put("a", []byte("1")).If(0))
	wantConflict(t, s, []kv.Op{kv.Put("a", []byte("2")).If(0)}, kv.KeyConflict{Key: "a", Expected: 0, Actual: r1})
	wantEntry(t, s, "a", "1", r1)
	r2 := mustCommit(t, s, kv.Put("a", []byte("2")).If(r1))
	wantConflict(t, s, []kv.Op{kv.Put("a", []byte("3")).If(r1)}, kv.KeyConflict{Key: "a", Expected: r1, Actual: r2})
	wantConflict(t, s, []kv.Op{kv.Delete("a").If(r1)}, kv.KeyConflict{Key: "a", Expected: r1, Actual: r2})
	wantConflict(t, s, []kv.Op{kv.Delete("b").If(r2)}, kv.KeyConflict{Key: "b", Expected: r2, Actual: 0})
	wantConflict(t, s, []kv.Op{kv.Delete("a").If(0)}, kv.KeyConflict{Key: "a", Expected: 0, Actual: r2})
	mustCommit(t, s, kv.Delete("a").If(r2))
	wantEntry(t, s, "a", "", 0)
	r3 := mustCommit(t, s, kv.Put("a", []byte("4")).If(0))
	if r3 <= r2 {
		t.Fatalf("revision %d after %d", r3, r2)
	}
	wantEntry(t, s, "a", "4", r3)
}

func testTransactions(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	ra := mustPut(t, s, "a", "1")
	rb := mustPut(t, s, "b", "1")
	// Conditions see the state before the transaction, and the error lists every one that fails.
	wantConflict(t, s, []kv.Op{
		kv.Put("a", []byte("2")).If(ra), kv.Put("c", []byte("2")).If(7), kv.Check("b", 0), kv.Delete("a2"), kv.Put("d", []byte("2")),
	}, kv.KeyConflict{Key: "c", Expected: 7, Actual: 0}, kv.KeyConflict{Key: "b", Expected: 0, Actual: rb})
	wantRange(t, s, kv.KeyRange{}, false, "a=1", "b=1")

	r := mustCommit(t, s, kv.Put("a", []byte("2")).If(ra), kv.Check("b", rb), kv.Check("x", 0), kv.Put("c", []byte("2")).If(0), kv.Delete("b2"))
	wantEntry(t, s, "a", "2", r)
	wantEntry(t, s, "b", "1", rb)
	wantEntry(t, s, "c", "2", r)
	r2 := mustCommit(t, s, kv.Delete("a"), kv.Delete("b"), kv.Put("d", []byte("3")))
	wantRange(t, s, kv.KeyRange{}, false, "c=2", "d=3")
	wantEntry(t, s, "d", "3", r2)
}

func testNoChange(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	r := mustPut(t, s, "a", "1")
	for _, ops := range [][]kv.Op{
		{kv.Delete("b")}, {kv.Delete("b").If(0)}, {kv.Check("a", r)}, {kv.Check("b", 0)}, {kv.Check("a", r), kv.Delete("b")},
	} {
		if got := mustCommit(t, s, ops...); got != r {
			t.Errorf("%+v changes nothing but moves the revision from %d to %d", ops, r, got)
		}
	}
	wantRange(t, s, kv.KeyRange{}, false, "a=1")
}

func testLimits(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	long := strings.Repeat("k", kv.MaxKey)
	many := make([]kv.Op, kv.MaxOps+1)
	for i := range many {
		many[i] = kv.Put(fmt.Sprintf("many/%04d", i), []byte("x"))
	}
	big := make([]byte, kv.MaxValue)
	for i := range big {
		big[i] = byte(i * 7)
	}
	invalid := map[string][]kv.Op{
		"no operation":    {},
		"empty key":       {kv.Put("", nil)},
		"long key":        {kv.Put(long+"k", nil)},
		"value too large": {kv.Put("a", append([]byte{0}, big...))},
		"too large":       {kv.Put("a", big), kv.Put("b", make([]byte, kv.MaxCommit-kv.MaxValue))},
		"too many":        many,
		"key twice":       {kv.Put("a", nil), kv.Check("b", 0), kv.Delete("a")},
		"check of none":   {{Kind: kv.OpCheck, Key: "a"}},
		"deletion of":     {{Kind: kv.OpDelete, Key: "a", Value: []byte("x")}},
		"no kind":         {{Key: "a"}},
		"unknown kind":    {{Kind: 9, Key: "a"}},
	}
	for name, ops := range invalid {
		if _, err := s.Commit(t.Context(), ops...); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	for _, key := range []string{"", long + "k"} {
		if _, err := s.Get(t.Context(), key); !errors.Is(err, kv.ErrInvalid) {
			t.Errorf("Get of a key of %d bytes: %v, want ErrInvalid", len(key), err)
		}
	}
	if _, err := s.Range(t.Context(), kv.KeyRange{Prefix: long + "k"}); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("Range of a long prefix: %v, want ErrInvalid", err)
	}
	wantRange(t, s, kv.KeyRange{}, false)

	r := mustCommit(t, s, kv.Put(long, big))
	wantEntry(t, s, long, string(big), r)
	mustCommit(t, s, many[:kv.MaxOps]...)
	if p, err := s.Range(t.Context(), kv.KeyRange{Prefix: "many/"}); err != nil || len(p.Entries) != kv.MaxOps {
		t.Fatalf("%d entries, %v; want %d", len(p.Entries), err, kv.MaxOps)
	}
}

func testOwnership(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	value := []byte("first")
	r := mustCommit(t, s, kv.Put("a", value))
	copy(value, "xxxxx")
	wantEntry(t, s, "a", "first", r)
	e, err := s.Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	copy(e.Value, "yyyyy")
	p, err := s.Range(t.Context(), kv.KeyRange{})
	if err != nil {
		t.Fatal(err)
	}
	copy(p.Entries[0].Value, "zzzzz")
	wantEntry(t, s, "a", "first", r)
	got := collectEvents(t, s, "", r-1, 1)
	if string(got[0].Value) != "first" {
		t.Fatalf("a watch tells %q", got[0].Value)
	}
}

func testRange(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	keys := []string{"a", "a/", "a/1", "a/2", "a/2\x00", "a/2\xff", "a/\xff", "a/\xff\xff", "a0", "b", "\xff", "\xff\xff"}
	for i, key := range slices.Backward(keys) {
		mustPut(t, s, key, fmt.Sprint(i))
	}
	slices.Sort(keys)
	show := func(from, to int) []string {
		var out []string
		for i := from; i < to; i++ {
			e, err := s.Get(t.Context(), keys[i])
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, keys[i]+"="+string(e.Value))
		}
		return out
	}
	wantRange(t, s, kv.KeyRange{}, false, show(0, 12)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a"}, false, show(0, 9)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/"}, false, show(1, 8)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/", After: "a/1"}, false, show(3, 8)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/", After: "a"}, false, show(1, 8)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/", After: "a/2", Limit: 2}, true, show(4, 6)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/", After: "a/2\xff", Limit: 2}, false, show(6, 8)...)
	wantRange(t, s, kv.KeyRange{Prefix: "a/", After: "b"}, false)
	wantRange(t, s, kv.KeyRange{Prefix: "a/\xff"}, false, show(6, 8)...)
	wantRange(t, s, kv.KeyRange{Prefix: "\xff"}, false, show(10, 12)...)
	wantRange(t, s, kv.KeyRange{Prefix: "c"}, false)
	wantRange(t, s, kv.KeyRange{Limit: 12}, false, show(0, 12)...)
	wantRange(t, s, kv.KeyRange{Limit: 1}, true, show(0, 1)...)
}

func testRangeBytes(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	value := make([]byte, kv.MaxValue)
	const n = kv.MaxRangeBytes/kv.MaxValue + 2
	for i := range n {
		mustCommit(t, s, kv.Put(fmt.Sprintf("k%02d", i), value))
	}
	total, after := 0, ""
	for {
		p, err := s.Range(t.Context(), kv.KeyRange{After: after})
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, e := range p.Entries {
			size += len(e.Key) + len(e.Value)
		}
		if size > kv.MaxRangeBytes+1024 {
			t.Fatalf("a page of %d bytes", size)
		}
		total += len(p.Entries)
		if !p.More {
			break
		}
		after = p.Entries[len(p.Entries)-1].Key
	}
	if total != n {
		t.Fatalf("%d entries over all pages, want %d", total, n)
	}
}

// testReadAll reads more than a page at one revision, while entries change, come and go.
func testReadAll(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	value := make([]byte, kv.MaxValue)
	const n = kv.MaxRangeBytes/kv.MaxValue + 3
	revision := uint64(0)
	for i := range n {
		revision = mustCommit(t, s, kv.Put(fmt.Sprintf("k%02d", i), value))
	}
	var keys []string
	at, err := kv.ReadAll(t.Context(), s, func(e kv.Entry) error {
		if keys = append(keys, e.Key); len(keys) == 1 {
			mustCommit(t, s, kv.Put(fmt.Sprintf("k%02d", n-1), []byte("changed")), kv.Delete(fmt.Sprintf("k%02d", n-2)), kv.Put("later", nil))
		}
		if len(e.Value) != len(value) || e.Revision > revision {
			t.Errorf("%s has %d bytes at revision %d, of a read at %d", e.Key, len(e.Value), e.Revision, revision)
		}
		return nil
	})
	if err != nil || len(keys) != n || !slices.IsSorted(keys) || at < revision {
		t.Fatalf("%d entries at revision %d, %v; want %d at %d", len(keys), at, err, n, revision)
	}
	boom := errors.New("boom")
	if _, err := kv.ReadAll(t.Context(), s, func(kv.Entry) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("an error of the function became %v", err)
	}
}

func testReopen(t *testing.T, h storeFactory) {
	if h.Reopen == nil {
		return // the engine has no persistence
	}
	s := h.Open(t)
	ra := mustPut(t, s, "a", "1")
	mustPut(t, s, "b", "2")
	rd := mustCommit(t, s, kv.Delete("b"))
	s = h.Reopen(t, s)
	wantEntry(t, s, "a", "1", ra)
	wantEntry(t, s, "b", "", 0)
	if p, err := s.Range(t.Context(), kv.KeyRange{}); err != nil || p.Revision < rd {
		t.Fatalf("the store's revision is %d (%v), it was %d", p.Revision, err, rd)
	}
	rc := mustCommit(t, s, kv.Put("a", []byte("3")).If(ra))
	if rc <= rd {
		t.Fatalf("revision %d after %d", rc, rd)
	}
	s = h.Reopen(t, s)
	wantEntry(t, s, "a", "3", rc)
	closeStore(t, s)
}

func testClosed(t *testing.T, h storeFactory) {
	s := h.Open(t)
	mustPut(t, s, "a", "1")
	closeStore(t, s)
	closeStore(t, s)
	_, gerr := s.Get(t.Context(), "a")
	_, rerr := s.Range(t.Context(), kv.KeyRange{})
	_, cerr := s.Commit(t.Context(), kv.Put("a", nil))
	werr := s.Watch(t.Context(), "", 0, func(kv.EventBatch) error { return nil })
	for _, err := range []error{gerr, rerr, cerr, werr} {
		if !errors.Is(err, kv.ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	}
}
