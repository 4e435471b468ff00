package batcher

import (
	"context"
	"slices"
	"sync"
	"testing"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// staleCatalog is a view that is behind what the control plane knows.
type staleCatalog struct {
	mu sync.Mutex
	// view is what Lookup returns, truth what Resolve does.
	view, truth catalog
	err         error // of Resolve
	resolves    int
	// looked, when set, is called after each Lookup.
	looked func(name string)
}

func newStaleCatalog() *staleCatalog {
	return &staleCatalog{view: testCatalog(), truth: testCatalog()}
}

func (s *staleCatalog) Lookup(name string) (*scribev1.Category, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.view.Lookup(name)
	if s.looked != nil {
		s.looked(name)
	}
	return c, ok
}

func (s *staleCatalog) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolves++
	if s.err != nil {
		return nil, s.err
	}
	return s.truth.Resolve(ctx, name)
}

// again is a category as it is after it was deleted and created again.
func again(c catalog, name string, id uint32) *scribev1.Category {
	old := c[name]
	return &scribev1.Category{Name: name, Id: id, Shards: old.GetShards(), Retention: old.GetRetention(), Delivery: old.GetDelivery()}
}

func (s *staleCatalog) edit(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// TestRetiredCategory: a batcher that has not heard that a category was deleted stores nothing in its logs once they are retired. The
// first writers learn that the logs have ended; from then on the control plane is asked, and what it says holds.
func TestRetiredCategory(t *testing.T) {
	for _, tc := range []struct {
		name     string
		old, new uint32
		slot     uint16
		known    bool // the batcher has written to the logs before
	}{
		{"alpha", 1, 101, 7, true},
		{"alpha", 1, 101, 7, false},
		{"once", 4, 104, 0, true},
		{"once", 4, 104, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			view := newStaleCatalog()
			c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Categories = view })
			seq := func(first uint64) *sequence { return &sequence{producer: 9, epoch: 1, first: first} }
			if tc.known {
				c.commit(makeFrame(t, tc.name, 0, seq(1), "old"))
			}
			if err := c.log.Retire(t.Context(), tc.old); err != nil {
				t.Fatal(err)
			}
			view.edit(func() { delete(view.truth, tc.name) })
			send := func(first uint64, message string) scribev1.Reason {
				t.Helper()
				got := reasons(c.submit(committed, makeFrame(t, tc.name, 0, seq(first), message), makeFrame(t, "beta", 0, nil, message)))
				if got[1] != 0 {
					t.Errorf("another category: %v", got[1])
				}
				return got[0]
			}
			if got := send(2, "first"); got != scribev1.Reason_REASON_SEALED {
				t.Errorf("the first writer is told %v", got)
			}
			if view.resolves > 0 {
				t.Errorf("the control plane was asked %d times before", view.resolves)
			}
			appends, opens := c.log.appends.count(), c.log.opens.count()
			if got := send(2, "gone"); got != scribev1.Reason_REASON_UNKNOWN_CATEGORY {
				t.Errorf("after the deletion: %v", got)
			}
			view.edit(func() { view.err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away") })
			if got := send(2, "away"); got != scribev1.Reason_REASON_NO_BACKEND {
				t.Errorf("while the control plane is away: %v", got)
			}
			if a, o := c.log.appends.count()-appends, c.log.opens.count()-opens; a != 2 || o != 0 {
				t.Errorf("%d appends and %d openings for what cannot be stored and two frames that can", a, o)
			}
			view.edit(func() { view.err, view.truth[tc.name] = nil, again(view.view, tc.name, tc.new) })
			if got := send(2, "new"); got != 0 {
				t.Errorf("after it was created again: %v", got)
			}
			c.mustBe(record.MakeShardID(tc.new, 0, tc.slot), "new")
			view.edit(func() { view.view[tc.name] = view.truth[tc.name] })
			resolves := view.resolves
			if got := send(3, "newer"); got != 0 || view.resolves != resolves {
				t.Errorf("with a view that is right: %v, asked %d times", got, view.resolves-resolves)
			}
			c.mustBe(record.MakeShardID(tc.new, 0, tc.slot), "new", "newer")
			want := []string{}
			if tc.known {
				want = append(want, "old")
			}
			c.mustBe(record.MakeShardID(tc.old, 0, tc.slot), want...)
			c.verify()
		})
	}
}

// TestRetiredUnderWay: frames that are in memory when the logs are retired are refused, and not stored.
func TestRetiredUnderWay(t *testing.T) {
	view := newStaleCatalog()
	c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Categories = view })
	c.commit(makeFrame(t, "alpha", 0, nil, "0"))
	hold, seen := make(chan struct{}), make(chan struct{})
	c.store.puts.plan(step{hold: hold, seen: seen})
	first := c.background("1")
	<-seen
	if err := c.log.Retire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	view.edit(func() { view.truth["alpha"] = again(view.view, "alpha", 101) })
	close(hold)
	if got := reasons(<-first); !slices.Equal(got, []scribev1.Reason{scribev1.Reason_REASON_SEALED}) {
		t.Errorf("reasons %v", got)
	}
	c.commit(makeFrame(t, "alpha", 0, nil, "1"))
	c.mustBe(alpha0, "0")
	c.mustBe(record.MakeShardID(101, 0, 7), "1")
	c.verify()
}

// TestCreatedAgainWithinRequest: the frames of an exactly_once category in one request all go to one category of its name. If the first
// went to the logs that have ended, and the second to those that begin, the first, sent again, would be taken for a repetition.
func TestCreatedAgainWithinRequest(t *testing.T) {
	frame := func(shard uint32, first uint64) []byte {
		return makeFrame(t, "once", shard, &sequence{producer: 9, epoch: 1, first: first}, "x")
	}
	t.Run("looked up again", func(t *testing.T) {
		view := newStaleCatalog()
		view.looked = func(name string) {
			if name == "once" {
				view.view["once"] = again(view.truth, "once", 104)
			}
		}
		c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Categories = view })
		f1, f2, other := frame(0, 1), frame(0, 2), makeFrame(t, "alpha", 0, nil, "x")
		results := c.submit(committed, f1, other, f2, other)
		if first, second := record.ShardID(results[0].GetShard()), record.ShardID(results[2].GetShard()); first != second || first.Category() != 4 {
			t.Errorf("frames of one request are in shards %v and %v, want one of category 4: %v", first, second, reasons(results))
		}
		c.commit(f2)
		c.verify()
	})
	t.Run("resolved", func(t *testing.T) {
		view := newStaleCatalog()
		c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Categories = view })
		if err := c.log.Retire(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		sealed, again1 := scribev1.Reason_REASON_SEALED, scribev1.Reason_REASON_NO_BACKEND
		if got := reasons(c.submit(committed, frame(1, 1))); !slices.Equal(got, []scribev1.Reason{sealed}) {
			t.Errorf("reasons %v", got)
		}
		view.edit(func() { view.truth["once"] = again(view.truth, "once", 104) })
		// Of the log of shard 0 it is not known that it has ended, of that of shard 1 it is.
		request := [][]byte{frame(0, 1), frame(1, 1), frame(0, 2)}
		if got := reasons(c.submit(committed, request...)); !slices.Equal(got, []scribev1.Reason{sealed, again1, sealed}) {
			t.Errorf("reasons %v", got)
		}
		for _, r := range c.commit(request...) {
			if r.GetDuplicate() || record.ShardID(r.GetShard()).Category() != 104 {
				t.Errorf("result %v", r)
			}
		}
		c.verify()
	})
}

// TestEndedLogsAreBounded: what is remembered of logs that have ended takes a bounded amount of memory.
func TestEndedLogsAreBounded(t *testing.T) {
	var e sealedLogs
	if e.hasLog(0) {
		t.Error("a log has ended from the start")
	}
	for i := range record.ShardID(3 * maxSealed) {
		e.addLog(i)
		e.addLog(i)
		if !e.hasLog(i) {
			t.Fatalf("log %d is forgotten at once", i)
		}
	}
	if n := len(e.mu.shards); n != maxSealed || e.n.Load() != maxSealed {
		t.Errorf("%d are remembered", n)
	}
}
