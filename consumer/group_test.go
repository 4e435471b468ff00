package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// given is what members were given, by message.
type given struct {
	mu sync.Mutex
	by map[string][]string
}

func (g *given) add(member, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by == nil {
		g.by = map[string][]string{}
	}
	g.by[message] = append(g.by[message], member)
}

// check fails unless there are n different messages, each given so many times at most.
func (g *given) check(t testing.TB, n, times int) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.by) != n {
		t.Errorf("%d messages came, want %d", len(g.by), n)
	}
	for _, m := range slices.Sorted(maps.Keys(g.by)) {
		if len(g.by[m]) > times {
			t.Errorf("%s was given to %v", m, g.by[m])
		}
	}
}

// groupMember is a member that reads into a ledger.
type groupMember struct {
	*consumer.Group

	stop context.CancelFunc
	done chan error
}

func member(t testing.TB, c *cell, g *groupCell, name string, each func(*consumer.Group, consumer.Record) error, opts ...consumer.Option) *groupMember {
	t.Helper()
	group, err := consumer.NewGroup("", categoryName, "readers", append([]consumer.Option{
		consumer.WithServices(c, c), consumer.WithGroupService(g), consumer.WithMember(name), consumer.WithStart(consumer.Earliest()),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &groupMember{Group: group, stop: cancel, done: make(chan error, 1)}
	go func() {
		var failed error
		for rec, err := range group.Records(ctx) {
			if err == nil {
				err = each(group, rec)
			}
			if failed = err; err != nil {
				break
			}
		}
		m.done <- failed
	}()
	t.Cleanup(func() {
		cancel()
		_ = group.Close()
	})
	return m
}

// end ends the iteration and leaves the group.
func (m *groupMember) end(t testing.TB) {
	t.Helper()
	m.stop()
	if err := <-m.done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func fill(c *cell, from, to int) {
	for i := from; i < to; i++ {
		c.add(shardID(0, uint16(1+i%2)), fmt.Sprintf("%04d a", i), fmt.Sprintf("%04d b", i))
	}
}

// Members share everything, and everything comes once, whoever comes and goes; what auto-commit has stored at the end is all.
func TestGroupSharesAndRebalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, l := newCell(), newGroupCell(bucket.Pointers), &given{}
		note := func(name string) func(*consumer.Group, consumer.Record) error {
			return func(_ *consumer.Group, r consumer.Record) error {
				l.add(name, string(r.Payload))
				<-time.After(50 * time.Millisecond) // so that buckets move while payloads are in the middle, and many are ahead
				return nil
			}
		}
		fill(c, 0, 200)
		var told []string
		var mu sync.Mutex
		tell := func(what string) func(consumer.Rebalance) {
			return func(r consumer.Rebalance) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprintf("%s %d", what, len(r.Buckets)))
			}
		}
		a := member(t, c, g, "a", note("a"), consumer.WithOnAssigned(tell("assigned")), consumer.WithOnRevoked(tell("revoked")))
		<-time.After(3 * time.Second)
		b := member(t, c, g, "b", note("b"))
		<-time.After(5 * time.Second)
		fill(c, 200, 400)
		d := member(t, c, g, "d", note("d"))
		<-time.After(5 * time.Second)
		b.end(t)
		<-time.After(60 * time.Second)
		a.end(t)
		d.end(t)
		l.check(t, 800, 1)
		for w := range uint16(2) {
			if n := g.left(t, shardID(0, w+1), 201); n != 0 {
				t.Errorf("%d pointers of shard %d are not committed", n, w+1)
			}
		}
		if !slices.Contains(told, "assigned 16") || !slices.Contains(told, "revoked 8") {
			t.Errorf("told %v", told)
		}
		c.check(t)
	})
}

// Without auto-commit a bucket is given back once what was yielded of it is committed, and not before.
func TestGroupGivesBackWhatIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, l := newCell(), newGroupCell(bucket.Pointers), &given{}
		fill(c, 0, 50)
		a := member(t, c, g, "a", func(_ *consumer.Group, r consumer.Record) error { l.add("a", string(r.Payload)); return nil }, consumer.WithAutoCommit(0))
		<-time.After(5 * time.Second)
		b := member(t, c, g, "b", func(_ *consumer.Group, r consumer.Record) error { l.add("b", string(r.Payload)); return nil }, consumer.WithAutoCommit(0))
		<-time.After(10 * time.Second)
		if n := len(b.Assigned().Buckets); n != 0 {
			t.Fatalf("b has %d buckets of which a has not committed what it was given", n)
		}
		if n := len(a.Assigned().Buckets); n != 8 {
			t.Errorf("a reads %d buckets, others are to have 8", n)
		}
		fill(c, 50, 100)
		<-time.After(time.Second)
		if err := a.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second)
		if n := len(b.Assigned().Buckets); n != 8 {
			t.Errorf("b has %d buckets", n)
		}
		if err := errors.Join(a.Commit(t.Context()), b.Commit(t.Context())); err != nil {
			t.Error(err)
		}
		a.end(t)
		b.end(t)
		l.check(t, 200, 1)
	})
}

// A member that can't reach its group pauses before others may have its buckets, and goes on, without repeating anything, when it can
// again and nobody has.
func TestGroupPausesWithoutCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, l := newCell(), newGroupCell(bucket.Pointers), &given{}
		count := func() int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.by)
		}
		stop := make(chan struct{})
		go func() {
			for i := 0; ; i++ {
				select {
				case <-time.After(100 * time.Millisecond):
					fill(c, i, i+1)
				case <-stop:
					return
				}
			}
		}()
		m := member(t, c, g, "a", func(_ *consumer.Group, r consumer.Record) error { l.add("a", string(r.Payload)); return nil })
		<-time.After(5 * time.Second)
		g.set(rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, 0, "away"))
		<-time.After(8 * time.Second)
		paused := count()
		<-time.After(time.Minute)
		if n := count(); n > paused || n == 0 {
			t.Errorf("%d messages when the lease was over, %d a minute later", paused, n)
		}
		g.set(nil)
		<-time.After(20 * time.Second)
		close(stop)
		<-time.After(10 * time.Second)
		m.end(t)
		c.mu.Lock()
		total := 0
		for _, shard := range c.logs {
			total += 2 * len(shard.entries)
		}
		c.mu.Unlock()
		l.check(t, total, 1)
	})
}

// A member that was taken for dead is told so at its next commit, joins again, and is given again what was not committed.
func TestGroupFencedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, l := newCell(), newGroupCell(bucket.Pointers), &given{}
		fill(c, 0, 100)
		var lost []consumer.Rebalance
		m := member(t, c, g, "a", func(_ *consumer.Group, r consumer.Record) error { l.add("a", string(r.Payload)); return nil }, consumer.WithAutoCommit(0),
			consumer.WithOnRevoked(func(r consumer.Rebalance) { lost = append(lost, r) }))
		<-time.After(5 * time.Second)
		if err := m.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		fill(c, 100, 120)
		<-time.After(5 * time.Second)
		g.expel("a")
		if err := m.Commit(t.Context()); !errors.Is(err, consumer.ErrFenced) {
			t.Errorf("a commit after the membership ended: %v", err)
		}
		<-time.After(10 * time.Second)
		if len(lost) != 1 || !lost[0].Lost || len(lost[0].Buckets) != 16 {
			t.Errorf("told of %+v", lost)
		}
		if err := m.Commit(t.Context()); err != nil && !errors.Is(err, consumer.ErrFenced) {
			t.Error(err)
		}
		if err := m.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		m.end(t)
		l.check(t, 240, 2)
		for message, by := range l.by {
			if again := message >= "0100"; again != (len(by) == 2) {
				t.Errorf("%s was given %d times", message, len(by))
			}
		}
	})
}

// A group's streams leave out what can't match its members' filter. That counts as done: it is not fetched, and is behind them when they commit.
func TestGroupLeavesOutWhatCannotMatch(t *testing.T) {
	kept := historyOf(t)
	synctest.Test(t, func(t *testing.T) {
		for _, sharing := range []bucket.Sharing{bucket.Pointers, bucket.Shards} {
			c, g, l := newCell(), newGroupCell(sharing), &given{}
			c.schema = kept
			c.skips = func(_ *scribev1.Query, frames []byte) bool { return !bytes.Contains(frames, []byte(`"n": 7`)) }
			shards := []record.ShardID{shardID(0, 1), shardID(1, 1)}
			for i := range 200 {
				c.add(shards[i%2], fmt.Sprintf(`{"n": %d, "s": "%d"}`, 5+i%11, i))
			}
			var members []*groupMember
			for _, name := range []string{"a", "b"} {
				members = append(members, member(t, c, g, name, func(_ *consumer.Group, r consumer.Record) error { l.add(name, string(r.Payload)); return nil },
					consumer.WithControl(c), columns.Where("n = 7")))
			}
			<-time.After(30 * time.Second)
			for _, m := range members {
				m.end(t)
			}
			const matching = 18
			l.check(t, matching, 1)
			for _, shard := range shards {
				if left := g.left(t, shard, 101); left != 0 {
					t.Errorf("%v: %d pointers of shard %v are not committed", sharing, left, shard)
				}
			}
			c.mu.Lock()
			if c.fetched != matching {
				t.Errorf("%v: %d payloads were fetched", sharing, c.fetched)
			}
			c.mu.Unlock()
			c.check(t)
		}
	})
}

// A group is put back while a stream of before still brings messages: they are not taken for what comes next at the new place.
func TestGroupIsResetUnderItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g, l := newCell(), newGroupCell(bucket.Pointers), &given{}
		c.perMessage = 2
		shard := shardID(0, 1)
		const n = 64
		for i := range n {
			c.add(shard, fmt.Sprintf("%04d", i))
		}
		g.places[shard] = g.scheme.Expand(&bucket.Position{Low: 40}, nil)
		messages := 0
		c.onStream = func(stream int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetEntries() == nil || stream > 1 {
				return []*scribev1.StreamResponse{m}, nil
			}
			if messages++; messages == 2 { // it is on its way when everything changes, and arrives afterwards
				g.reset()
				<-time.After(5 * time.Second)
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		m := member(t, c, g, "a", func(_ *consumer.Group, r consumer.Record) error { l.add("a", string(r.Payload)); return nil })
		<-time.After(20 * time.Second)
		m.end(t)
		l.check(t, n, 2)
		if left := g.left(t, shard, n+1); left != 0 {
			t.Errorf("%d pointers are not committed", left)
		}
		c.check(t)
	})
}

// What retention has removed is one gap for a member, and is behind it when it commits.
func TestGroupGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := newCell(), newGroupCell(bucket.Pointers)
		shard := shardID(0, 1)
		for i := range 100 {
			c.add(shard, fmt.Sprint(i))
		}
		c.trim(shard, 60)
		// The group knows the shard from before: it owes what was trimmed.
		g.places[shard] = g.scheme.Expand(&bucket.Position{Low: 10}, nil)
		group, err := consumer.NewGroup("", categoryName, "readers", consumer.WithServices(c, c), consumer.WithGroupService(g), consumer.WithUntilEnd())
		if err != nil {
			t.Fatal(err)
		}
		gaps, n := 0, 0
		for _, err := range group.Records(t.Context()) {
			gap := new(consumer.GapError)
			switch {
			case errors.As(err, &gap):
				if gaps++; gap.From != 10 || gap.To != 60 {
					t.Errorf("%v", gap)
				}
			case err != nil:
				t.Fatal(err)
			default:
				n++
			}
		}
		if err := group.Close(); err != nil {
			t.Error(err)
		}
		if gaps != 1 || n != 41 || g.left(t, shard, 101) != 0 {
			t.Errorf("%d gaps, %d messages, %d pointers not committed", gaps, n, g.left(t, shard, 101))
		}
	})
}

// An iteration to the end waits for buckets that others are to give back, and for nothing else.
func TestGroupUntilEnd(t *testing.T) {
	for _, sharing := range []bucket.Sharing{bucket.Pointers, bucket.Shards} {
		synctest.Test(t, func(t *testing.T) {
			c, g, l := newCell(), newGroupCell(sharing), &given{}
			for i := range 120 {
				c.add(shardID(uint16(i%6), 1), fmt.Sprint(i))
			}
			read := func(name string) func(*consumer.Group, consumer.Record) error {
				return func(_ *consumer.Group, r consumer.Record) error {
					l.add(name, string(r.Payload))
					<-time.After(20 * time.Millisecond)
					return nil
				}
			}
			a := member(t, c, g, "a", read("a"), consumer.WithUntilEnd())
			<-time.After(500 * time.Millisecond)
			b := member(t, c, g, "b", read("b"), consumer.WithUntilEnd())
			for _, m := range []*groupMember{a, b} {
				if err := <-m.done; err != nil {
					t.Error(err)
				}
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
			l.check(t, 120, 1)
		})
	}
}

// Batches and a commit in the middle of a payload: what comes after is the rest.
func TestGroupCommitsToTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := newCell(), newGroupCell(bucket.Pointers)
		c.add(shardID(0, 1), "a", "b", "c", "d")
		read := func(n int) (got []string) {
			group, err := consumer.NewGroup("", categoryName, "readers", consumer.WithServices(c, c), consumer.WithGroupService(g), consumer.WithUntilEnd(), consumer.WithAutoCommit(0))
			if err != nil {
				t.Fatal(err)
			}
			for rec, err := range group.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, string(rec.Payload)); len(got) == n {
					if err := group.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			if err := group.Close(); err != nil {
				t.Error(err)
			}
			return got
		}
		if got := fmt.Sprint(read(1), read(2), read(5), read(1)); got != "[a] [b c] [d] [d]" {
			t.Error(got)
		}
		c.add(shardID(0, 1), "e", "f")
		group, err := consumer.NewGroup("", categoryName, "readers", consumer.WithServices(c, c), consumer.WithGroupService(g), consumer.WithUntilEnd())
		if err != nil {
			t.Fatal(err)
		}
		rows := int64(0)
		for batch, err := range columns.Batches(t.Context(), group) {
			if err != nil {
				t.Fatal(err)
			}
			rows += batch.NumRows()
		}
		if err := group.Close(); err != nil || rows != 2 {
			t.Errorf("%d rows, %v", rows, err)
		}
	})
}

// What can't be is refused at once, or ends the iteration with an error that says so.
func TestGroupErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, g := newCell(), newGroupCell(bucket.Pointers)
		services := []consumer.Option{consumer.WithServices(c, c), consumer.WithGroupService(g)}
		for name, opts := range map[string][]consumer.Option{
			"ttl": {consumer.WithGroupTTL(time.Millisecond)}, "revoke": {consumer.WithRevokeTimeout(0)}, "auto": {consumer.WithAutoCommit(-1)},
			"sharing": {consumer.WithSharing(7)}, "buckets": {consumer.WithBuckets(48)}, "shards": {consumer.WithLogicalShards(1)},
		} {
			if _, err := consumer.NewGroup("", categoryName, "readers", append(opts, services...)...); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
		if _, err := consumer.NewGroup("", categoryName, "a/b", services...); err == nil {
			t.Error("a name that is none was accepted")
		}
		if _, err := consumer.NewGroup("", categoryName, "readers", consumer.WithServices(c, c)); !errors.Is(err, consumer.ErrNotSupported) {
			t.Errorf("without a coordinator: %v", err)
		}
		first := func(down error, during bool) error {
			group, err := consumer.NewGroup("", categoryName, "readers", services...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				g.set(nil)
				if err := group.Close(); err != nil {
					t.Error(err)
				}
			}()
			if !during {
				g.set(down)
			} else {
				time.AfterFunc(5*time.Second, func() { g.set(down) })
			}
			for _, err := range group.Records(t.Context()) {
				if err != nil {
					return err
				}
			}
			return nil
		}
		if err := first(rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no"), false); !errors.Is(err, consumer.ErrUnknownCategory) {
			t.Errorf("unknown category: %v", err)
		}
		if err := first(rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "it reads another one"), false); !errors.Is(err, consumer.ErrRefused) {
			t.Errorf("another category: %v", err)
		}
		if err := first(rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_GROUP, "gone"), true); !errors.Is(err, consumer.ErrGroupDeleted) {
			t.Errorf("deleted: %v", err)
		}
	})
}
