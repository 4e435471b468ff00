package replicated_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/replicated"
)

// event is one change of a shard, which each replica applies in the same order.
type event struct {
	appends int
	trim    record.LSN
	seal    bool
	erase   bool
	time    int64
}

// history is what a leader decided about one shard.
type history []event

// state is the shard after a number of events.
func (h history) state(n int) (st metalog.State, erased bool) {
	st = metalog.State{FirstLSN: 1, NextLSN: 1}
	for _, e := range h[:n] {
		st.NextLSN += record.LSN(e.appends)
		st.FirstLSN = max(st.FirstLSN, min(e.trim, st.NextLSN))
		st.Sealed = st.Sealed || e.seal || e.erase
		st.Watermark = e.time
		erased = erased || e.erase
	}
	return st, erased
}

// timeOf returns the time of a record.
func (h history) timeOf(lsn record.LSN) int64 {
	next := record.LSN(1)
	for _, e := range h {
		if next += record.LSN(e.appends); lsn < next {
			return e.time
		}
	}
	return 0
}

// update is what a subscription of a replica that applied n events sends to a subscriber at a position, at most few records.
func (h history) update(n int, from record.LSN, few int) (metalog.Update, record.LSN) {
	st, erased := h.state(n)
	u := metalog.Update{Shard: 1, NextLSN: st.NextLSN}
	if erased {
		u.NextLSN, u.Watermark, u.Sealed = from, st.Watermark, true // it does not know the tail any more
		return u, from
	}
	if from < st.FirstLSN {
		u.TrimmedTo, from = st.FirstLSN, st.FirstLSN
	}
	for ; from < st.NextLSN && len(u.Entries) < few; from++ {
		u.Entries = append(u.Entries, metalog.Entry{LSN: from, Time: h.timeOf(from)})
	}
	if from >= st.NextLSN {
		u.Watermark, u.Sealed = st.Watermark, st.Sealed
	}
	return u, from
}

func drawHistory(t *rapid.T) (h history) {
	for n := range rapid.IntRange(1, 20).Draw(t, "events") {
		e := event{appends: rapid.IntRange(0, 3).Draw(t, "appends"), time: int64(n + 1)}
		if rapid.IntRange(0, 4).Draw(t, "trims") == 0 {
			e.trim = record.LSN(rapid.IntRange(1, 20).Draw(t, "trim"))
		}
		h = append(h, e)
	}
	switch rapid.IntRange(0, 2).Draw(t, "end") {
	case 1:
		h = append(h, event{seal: true, time: int64(len(h) + 1)})
	case 2:
		h = append(h, event{seal: true, time: int64(len(h) + 1)}, event{erase: true, time: int64(len(h) + 2)})
	}
	return h
}

// TestSubscriptionMovesAmongLaggingReplicas: whatever replicas a subscription moves to, each anywhere in the history, the subscriber
// sees one log, and all of it.
func TestSubscriptionMovesAmongLaggingReplicas(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := drawHistory(r)
		few := rapid.IntRange(1, 4).Draw(r, "few")
		lags := rapid.SliceOfN(rapid.IntRange(0, len(h)), 0, 20).Draw(r, "replicas")
		lags = append(lags, len(h)) // the last one brings the rest
		var err error
		synctest.Test(t, func(t *testing.T) { err = followHistory(t.Context(), h, lags, few) })
		if err != nil {
			r.Fatal(err)
		}
	})
}

// followHistory subscribes to replicas that end after they brought what they have.
func followHistory(ctx context.Context, h history, lags []int, few int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(len(lags)+1)*2*time.Second)
	defer cancel()
	one := &front{}
	one.subscribe = func(_ context.Context, from []metalog.Position, fn func([]metalog.Update) error) error {
		if len(lags) == 0 {
			return metalog.ErrInvalid // nothing more to ask for
		}
		applied, at := lags[0], from[0].LSN
		lags = lags[1:]
		for {
			u, next := h.update(applied, at, few)
			if err := fn([]metalog.Update{u}); err != nil {
				return err
			}
			if done := next == at && u.TrimmedTo == 0 || u.Watermark != 0; done {
				return errors.New("gone")
			}
			at = next
		}
	}
	followed := linear.FollowedShard{Next: 1}
	l, err := replicated.New([]replicated.Replica{{URL: "http://a", Log: one}}, replicated.Options{Patience: time.Hour})
	if err != nil {
		return err
	}
	defer l.Close()
	err = l.Subscribe(ctx, []metalog.Position{{Shard: 1, LSN: 1}}, 0, func(updates []metalog.Update) error {
		for i := range updates {
			if err := followed.TakeUpdate(&updates[i]); err != nil {
				return err
			}
		}
		return nil
	})
	st, erased := h.state(len(h))
	switch {
	case !errors.Is(err, metalog.ErrInvalid) && !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the subscription: %w", err)
	case followed.Sealed != st.Sealed:
		return fmt.Errorf("sealed is %v, want %v", followed.Sealed, st.Sealed)
	case followed.Next != st.NextLSN && !erased:
		return fmt.Errorf("the subscriber is at %d, want %d", followed.Next, st.NextLSN)
	case followed.Next < followed.Tail:
		return fmt.Errorf("the subscriber is at %d of %d", followed.Next, followed.Tail)
	}
	return nil
}

// watching is a replica's watch of some shards, which then ends.
func watching(lists ...[]record.ShardID) func(context.Context, func([]record.ShardID) error) error {
	return func(_ context.Context, fn func([]record.ShardID) error) error {
		for _, list := range lists {
			if err := fn(list); err != nil {
				return err
			}
		}
		return errors.New("gone")
	}
}

// Each shard comes once, also from a replica that does not have all yet. The first call comes even if there are none.
func TestWatchMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 3)
		fronts[0].watch = watching(nil, []record.ShardID{1, 2})
		fronts[1].watch = watching([]record.ShardID{1}, []record.ShardID{2})
		fronts[2].watch = watching([]record.ShardID{1, 2, 3})
		var got [][]record.ShardID
		enough := errors.New("enough")
		err := l.WatchShards(t.Context(), 7, func(shards []record.ShardID) error {
			got = append(got, slices.Clone(shards))
			if slices.Contains(shards, 3) {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || !slices.EqualFunc(got, [][]record.ShardID{{}, {1, 2}, {3}}, slices.Equal) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// A replica that leaves out records, or sends them twice, is left; the subscriber does not see it.
func TestReplicaThatSkipsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 2)
		entries := func(lsns ...record.LSN) []metalog.Update {
			u := metalog.Update{Shard: 1, NextLSN: 4}
			for _, lsn := range lsns {
				u.Entries = append(u.Entries, metalog.Entry{LSN: lsn, Time: 1})
			}
			if lsns[len(lsns)-1] == 3 {
				u.Watermark = 1
			}
			return []metalog.Update{u}
		}
		fronts[0].subscribe = func(_ context.Context, _ []metalog.Position, fn func([]metalog.Update) error) error {
			return errors.Join(fn(entries(1)), fn(entries(3)))
		}
		fronts[1].subscribe = func(_ context.Context, from []metalog.Position, fn func([]metalog.Update) error) error {
			if from[0].LSN != 2 {
				t.Errorf("asked from %d on", from[0].LSN)
			}
			return errors.Join(fn(entries(1, 2)), fn(entries(1, 2, 3)))
		}
		var got []record.LSN
		enough := errors.New("enough")
		err := l.Subscribe(t.Context(), []metalog.Position{{Shard: 1, LSN: 1}}, 0, func(updates []metalog.Update) error {
			for _, u := range updates {
				for _, e := range u.Entries {
					got = append(got, e.LSN)
				}
				if u.Watermark != 0 {
					return enough
				}
			}
			return nil
		})
		if !errors.Is(err, enough) || !slices.Equal(got, []record.LSN{1, 2, 3}) {
			t.Errorf("%v, %v", got, err)
		}
	})
}
