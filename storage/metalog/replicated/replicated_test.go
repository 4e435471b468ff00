package replicated_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// front is a replica whose writes and reads end with err, if that is not nil.
type front struct {
	metalog.Log  // what is not implemented here is not called
	url          string
	err          error
	elected      time.Time // err ends then, if not zero
	writes       int
	reads        int
	subscribe    func(ctx context.Context, from []metalog.Position, fn func([]metalog.Update) error) error
	watch        func(ctx context.Context, fn func([]record.ShardID) error) error
	subscription int
}

func (f *front) Append(context.Context, *metalog.Append) ([]metalog.Appended, error) {
	f.writes++
	if !f.elected.IsZero() && time.Now().After(f.elected) {
		f.err = nil
	}
	return []metalog.Appended{{FirstLSN: 7}}, f.err
}

func (f *front) Tail(context.Context, []record.ShardID) ([]metalog.State, error) {
	f.reads++
	return []metalog.State{{NextLSN: 7}}, f.err
}

func (f *front) Subscribe(ctx context.Context, from []metalog.Position, _ time.Duration, fn func([]metalog.Update) error) error {
	f.subscription++
	return f.subscribe(ctx, from, fn)
}

func (f *front) WatchShards(ctx context.Context, _ uint32, fn func([]record.ShardID) error) error {
	return f.watch(ctx, fn)
}

// newFronts returns replicas a, b, ... and the log over them.
func newFronts(t *testing.T, n int) ([]*front, *replicated.Log) {
	t.Helper()
	fronts := make([]*front, n)
	var replicas []replicated.Replica
	for i := range fronts {
		fronts[i] = &front{url: "http://" + string(rune('a'+i))}
		replicas = append(replicas, replicated.Replica{URL: fronts[i].url, Log: fronts[i]})
	}
	l, err := replicated.New(replicas, replicated.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return fronts, l
}

func notLeader(leader string) error { return &metalog.NotLeaderError{Leader: leader} }

func appendOne(ctx context.Context, l metalog.Log) error {
	done, err := l.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: 1, Epoch: 1, Records: [][]byte{{1}}}}})
	if err == nil && done[0].FirstLSN != 7 {
		return fmt.Errorf("the answer is %v", done)
	}
	return err
}

func wantWrites(t *testing.T, fronts []*front, want ...int) {
	t.Helper()
	for i, f := range fronts {
		if f.writes != want[i] {
			t.Errorf("%s took %d writes, want %d", f.url, f.writes, want[i])
		}
		f.writes = 0
	}
}

// wantUnavailable checks that an error says for certain that nothing was carried out, and that a later call may succeed.
func wantUnavailable(t *testing.T, err error) {
	t.Helper()
	if d := retry.Classify(err); d.Class != retry.Unavailable || d.Unknown {
		t.Errorf("the error is %v: %+v", err, d)
	}
}

// Replicas that were added serve reads and writes, those that were removed none; a bad list changes nothing.
func TestSetReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 3)
		a, b, c := fronts[0], fronts[1], fronts[2]
		list := func(fronts ...*front) (replicas []replicated.Replica) {
			for _, f := range fronts {
				replicas = append(replicas, replicated.Replica{URL: f.url, Log: f})
			}
			return replicas
		}
		if err := l.SetReplicas(list(a, b)); err != nil {
			t.Fatal(err)
		}
		a.err, b.err = notLeader(c.url), notLeader(c.url)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantUnavailable(t, appendOne(ctx, l))
		if c.writes > 0 {
			t.Error("a replica that is not listed was asked")
		}
		for _, bad := range [][]replicated.Replica{nil, list(a, a)} {
			if err := l.SetReplicas(bad); err == nil {
				t.Errorf("a list of %d was taken", len(bad))
			}
		}
		if err := l.SetReplicas(list(c)); err != nil {
			t.Fatal(err)
		}
		a.writes, b.writes, a.reads, b.reads = 0, 0, 0, 0
		if err := appendOne(t.Context(), l); err != nil {
			t.Error(err)
		}
		wantWrites(t, fronts, 0, 0, 1)
		if _, err := l.Tail(t.Context(), []record.ShardID{1}); err != nil || c.reads != 1 || a.reads+b.reads != 0 {
			t.Errorf("a read: %v, %d at the new one", err, c.reads)
		}
	})
}

func TestNewRefusesBadLists(t *testing.T) {
	for _, replicas := range [][]replicated.Replica{nil, {{URL: "http://a"}, {URL: "http://A/"}}} {
		if _, err := replicated.New(replicas, replicated.Options{}); err == nil {
			t.Errorf("%v was accepted", replicas)
		}
	}
}

// A write follows the name of the leader, and the next one goes there at once.
func TestWritesFollowTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 3)
		fronts[0].err, fronts[1].err = notLeader("http://C/"), notLeader("")
		began := time.Now()
		for _, asked := range []int{1, 0, 0} {
			if err := appendOne(t.Context(), l); err != nil {
				t.Error(err)
			}
			wantWrites(t, fronts, asked, 0, 1)
		}
		// The leader changes, and nobody knows the new one yet.
		fronts[0].err, fronts[1].err, fronts[2].err = notLeader(""), nil, notLeader("http://unlisted")
		if err := appendOne(t.Context(), l); err != nil {
			t.Error(err)
		}
		wantWrites(t, fronts, 1, 1, 1)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited for %v", waited)
		}
	})
}

// Errors about the request are the leader's last word.
func TestLeaderRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 2)
		fronts[0].err = fmt.Errorf("about it: %w", metalog.ErrFenced)
		if err := appendOne(t.Context(), l); !errors.Is(err, metalog.ErrFenced) {
			t.Error(err)
		}
		wantWrites(t, fronts, 1, 0)
	})
}

// Replicas that name each other, themselves or nobody are asked for the patience, with growing pauses.
func TestNobodyLeads(t *testing.T) {
	for name, leaders := range map[string][3]string{
		"circle": {"http://b", "http://c", "http://a"}, "selves": {"http://a", "http://b", "http://c"}, "nobody": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fronts, l := newFronts(t, 3)
				for i, f := range fronts {
					f.err = notLeader(leaders[i])
				}
				began := time.Now()
				err := appendOne(t.Context(), l)
				wantUnavailable(t, err)
				if waited := time.Since(began); waited < replicated.DefaultPatience/2 || waited > replicated.DefaultPatience {
					t.Errorf("gave up after %v", waited)
				}
				for _, f := range fronts {
					if f.writes < 5 || f.writes > 60 {
						t.Errorf("%s was asked %d times", f.url, f.writes)
					}
				}
			})
		})
	}
}

// A leader that is elected in the meantime takes the write.
func TestLeaderIsElected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 3)
		for _, f := range fronts {
			f.err = notLeader("http://a")
		}
		fronts[1].elected = time.Now().Add(3 * time.Second)
		began := time.Now()
		if err := appendOne(t.Context(), l); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// The end of the caller's time, or of the log, ends the search.
func TestSearchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 2)
		fronts[0].err, fronts[1].err = notLeader(""), notLeader("")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := appendOne(ctx, l)
		wantUnavailable(t, err)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("at the deadline: %v", err)
		}
		time.AfterFunc(time.Second, func() { _ = l.Close() })
		if err := appendOne(t.Context(), l); !errors.Is(err, metalog.ErrClosed) {
			t.Errorf("closed in between: %v", err)
		}
		if err := appendOne(t.Context(), l); !errors.Is(err, metalog.ErrClosed) {
			t.Errorf("after the close: %v", err)
		}
	})
}

// TestUnknownOutcomeIsReturned: an append that may have been applied is not repeated. The next one asks another replica first.
func TestUnknownOutcomeIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 3)
		if err := appendOne(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		wantWrites(t, fronts, 1, 0, 0)
		lost := errors.New("connection lost")
		fronts[0].err, fronts[1].err = lost, notLeader("http://c")
		if err := appendOne(t.Context(), l); !errors.Is(err, lost) || !retry.Classify(err).Unknown {
			t.Errorf("the lost append: %v", err)
		}
		wantWrites(t, fronts, 1, 0, 0)
		if err := appendOne(t.Context(), l); err != nil {
			t.Error(err)
		}
		wantWrites(t, fronts, 0, 1, 1)
	})
}

// A replica that can't be reached, or is closed, has not taken the write: another is asked.
func TestReplicaIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := rpc.NewTransport(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		})
		defer transport.Close()
		gone := remote.NewClient(rpc.NewMetalogClient(transport, "http://gone"))
		closed, leads := &front{err: metalog.ErrClosed}, &front{}
		l, err := replicated.New([]replicated.Replica{{URL: "http://gone", Log: gone}, {URL: "http://b", Log: closed}, {URL: "http://c", Log: leads}}, replicated.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := appendOne(t.Context(), l); err != nil || closed.writes != 1 {
			t.Error(err)
		}
		if _, err := l.Tail(t.Context(), []record.ShardID{1}); err != nil {
			t.Errorf("a read: %v", err)
		}
		if err := errors.Join(l.Close(), gone.Close()); err != nil {
			t.Error(err)
		}
	})
}

// Reads go to the first replica while it is there, and return to it.
func TestReadsPreferTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 2)
		read := func(want ...int) {
			t.Helper()
			if _, err := l.Tail(t.Context(), []record.ShardID{1}); err != nil {
				t.Error(err)
			}
			for i, f := range fronts {
				if f.reads != want[i] {
					t.Errorf("%s served %d reads, want %d", f.url, f.reads, want[i])
				}
				f.reads = 0
			}
		}
		read(1, 0)
		fronts[0].err = errors.New("away")
		read(1, 1)
		read(0, 1)
		fronts[0].err = nil
		<-time.After(time.Minute)
		read(1, 0)
		// Damage is one replica's own; what is wrong with the request is wrong everywhere.
		fronts[0].err = &metalog.CorruptError{Shard: 1}
		read(1, 1)
		fronts[0].err = &metalog.TrimmedError{Shard: 1}
		if _, err := l.Tail(t.Context(), []record.ShardID{1}); !errors.Is(err, metalog.ErrTrimmed) || fronts[1].reads != 0 {
			t.Errorf("a trimmed position: %v", err)
		}
		fronts[0].err, fronts[1].err = &metalog.CorruptError{Shard: 1}, errors.New("away")
		if _, err := l.Tail(t.Context(), []record.ShardID{1}); !errors.Is(err, metalog.ErrCorrupt) {
			t.Errorf("nobody serves: %v", err)
		}
	})
}

// A subscription that no replica serves ends after the patience, with the reason.
func TestNobodyServesTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fronts, l := newFronts(t, 2)
		for _, f := range fronts {
			f.subscribe = func(context.Context, []metalog.Position, func([]metalog.Update) error) error {
				return errors.New("away")
			}
		}
		began := time.Now()
		err := l.Subscribe(t.Context(), []metalog.Position{{Shard: 1, LSN: 1}}, 0, nil)
		if waited := time.Since(began); err == nil || !strings.Contains(err.Error(), "away") || waited < replicated.DefaultPatience || waited > 2*replicated.DefaultPatience {
			t.Errorf("after %v: %v", waited, err)
		}
		if n := fronts[0].subscription; n < 3 || n > 60 {
			t.Errorf("asked %d times", n)
		}
	})
}

// TestAddedLeader: a leader that was added after the list was made is reached by the name that the others tell, through one client.
func TestAddedLeader(t *testing.T) {
	added := &front{url: "http://n4"}
	follower := &front{url: "http://a", err: notLeader("http://N4/")}
	var connected []string
	l, err := replicated.New([]replicated.Replica{{URL: follower.url, Log: follower}}, replicated.Options{Connect: func(url string) metalog.Log {
		connected = append(connected, url)
		return added
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := appendOne(t.Context(), l); err != nil {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if added.writes != 2 || len(connected) != 1 {
		t.Errorf("%d writes at the leader, clients of %q", added.writes, connected)
	}
}
