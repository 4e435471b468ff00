package pebblelog

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
)

// follower returns a node that does not lead.
func (c *testCell) follower(t testing.TB) *testNode {
	t.Helper()
	leader := c.leader(t)
	for _, n := range c.nodes {
		if n != leader {
			return n
		}
	}
	t.Fatal("the only node leads")
	return nil
}

// without are the nodes but one.
func (c *testCell) without(n *testNode) *testCell {
	rest := &testCell{}
	for _, other := range c.nodes {
		if other != n {
			rest.nodes = append(rest.nodes, other)
		}
	}
	return rest
}

// awaitSeeds waits until the folder of a node was replaced so often, and is served.
func awaitSeeds(t testing.TB, n *testNode, want float64) {
	t.Helper()
	for began := time.Now(); testutil.ToFloat64(n.engine.metrics.seeds) < want || !n.engine.replica.servesFolder(); waitFor(t.Context(), time.Millisecond) {
		if time.Since(began) > 5*time.Minute || n.engine.Err() != nil {
			t.Fatalf("%s: its folder was not replaced: %v", n.name, n.engine.Err())
		}
	}
}

// awayStore is a store that can be away.
type awayStore struct {
	blob.Store
	away func() bool
}

func (s *awayStore) ReadAt(ctx context.Context, key string, p []byte, off int64) error {
	if s.away() {
		return blob.ErrUnavailable
	}
	return s.Store.ReadAt(ctx, key, p, off)
}

// A replica that runs and falls behind the trim is seeded in place. Those who read from it are sent elsewhere meanwhile, also while the
// store of snapshots is away, and read on there afterwards.
func TestBehindTheTrimWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		store := &awayStore{memory.New(), away.Load}
		c, entries := newCell(t, 3, snapshotOptions(store))
		c.fill(t)
		c.settle(t)
		n, subscribed := c.follower(t), make(chan error, 1)
		engine := n.engine
		go func() {
			subscribed <- engine.Subscribe(t.Context(), []metalog.Position{{Shard: shardA, LSN: 1}}, time.Second, func([]metalog.Update) error { return nil })
		}()
		synctest.Wait()
		n.cut.Store(true)
		others := c.without(n)
		others.fill(t)
		others.fill(t)
		if first := firstEntry(t, entries); first <= engine.Position().Applied+1 {
			t.Fatalf("the journal begins at entry %d, and %s is at %d", first, n.name, engine.Position().Applied)
		}
		away.Store(true)
		n.cut.Store(false)
		if err := <-subscribed; !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("the subscription: %v", err)
		}
		if _, err := engine.Tail(t.Context(), []record.ShardID{shardA}); !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("a read while the folder is replaced: %v", err)
		}
		waitFor(t.Context(), time.Minute)
		// Meanwhile the journal can't be reached again: it waits for that as well.
		n.cut.Store(true)
		away.Store(false)
		waitFor(t.Context(), time.Minute)
		if err := engine.Err(); err != nil {
			t.Fatalf("while neither the snapshots nor the journal were to be had: %v", err)
		}
		n.cut.Store(false)
		awaitSeeds(t, n, 1)
		c.compare(t)
		if _, err := engine.Tail(t.Context(), []record.ShardID{shardA}); err != nil {
			t.Error(err)
		}
		// It takes part as before, and makes snapshots itself.
		for c.leader(t) != n {
			if err := c.leader(t).engine.HandOver(t.Context()); err != nil && !errors.Is(err, metalog.ErrNotLeader) {
				t.Fatal(err)
			}
			waitFor(t.Context(), 10*time.Millisecond)
		}
		c.fill(t)
		c.compare(t)
		c.closeAll(t)
	})
}

// damageTables overwrites the tables of a node's folder, of which it has open files.
func damageTables(t *testing.T, n *testNode) {
	t.Helper()
	for _, name := range mustList(t, n.folder, testDir) {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		f, err := n.folder.OpenReadWrite(testDir+"/"+name, vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.WriteAt([]byte(strings.Repeat("damage", 100)), 0)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Damage that a replica meets in its files while it runs is healed in place: from a snapshot, or from the journal while there is none. One
// that leads lets another lead first.
func TestDamagedWhileRunning(t *testing.T) {
	for name, c := range map[string]struct{ snapshots, leads bool }{
		"follower": {true, false}, "leader": {true, true}, "without a snapshot": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDamage(t, c.snapshots, c.leads) })
		})
	}
}

func testDamage(t *testing.T, snapshots, leads bool) {
	o := snapshotOptions(memory.New())
	o.CacheBytes = 1
	if !snapshots {
		o.SnapshotEvery = time.Hour
	}
	c, _ := newCell(t, 2, o)
	if snapshots {
		c.fill(t)
	} else {
		states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := c.Append(t.Context(), one(shardA, states[0].Epoch, "x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.settle(t)
	n := c.follower(t)
	if leads {
		n = c.leader(t)
	}
	engine := n.engine
	if err := engine.db.Flush(); err != nil {
		t.Fatal(err)
	}
	damageTables(t, n)
	states, err := c.without(n).Tail(t.Context(), []record.ShardID{shardA})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Read(t.Context(), shardA, states[0].FirstLSN, 0, 0); !errors.Is(err, metalog.ErrCorrupt) {
		t.Errorf("a read of damaged files: %v", err)
	}
	for began := time.Now(); ; waitFor(t.Context(), time.Millisecond) {
		entries, err := engine.Read(t.Context(), shardA, states[0].FirstLSN, 0, 0)
		if err == nil && len(entries) == int(states[0].NextLSN-states[0].FirstLSN) {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%d records, %v, error %v", len(entries), err, engine.Err())
		}
	}
	if leads && c.leader(t) == n {
		t.Error("the replica whose files were damaged still leads")
	}
	c.compare(t)
	c.closeAll(t)
}

// An entry that is damaged in the journal halts the replicas that have not applied it, unless a snapshot leads over it.
func TestDamagedEntryWhileRunning(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			o := snapshotOptions(memory.New())
			c, entries := newCell(t, 2, o)
			c.fill(t)
			c.settle(t)
			n := c.follower(t)
			n.cut.Store(true)
			states, err := c.without(n).Open(t.Context(), "test", []record.ShardID{shardA})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := c.without(n).Append(t.Context(), one(shardA, states[0].Epoch, "x")); err != nil {
					t.Fatal(err)
				}
			}
			at := n.engine.Position().Applied
			if ahead {
				for c.head(t).Snapshot <= at {
					waitFor(t.Context(), time.Second)
				}
			} else if c.head(t).Snapshot > at {
				t.Fatal("there is a snapshot")
			}
			entries.Damage(at+1, func([]byte) []byte { return []byte("damage") })
			n.cut.Store(false)
			if ahead {
				awaitSeeds(t, n, 1)
				c.compare(t)
			} else {
				<-n.engine.Failed()
				if err := n.engine.Err(); !errors.Is(err, journal.ErrCorrupt) {
					t.Error(err)
				}
			}
			c.closeAll(t)
		})
	}
}

// A subscriber that takes nothing does not keep its replica from being replaced for ever: the process ends then.
func TestReplacingWaitsForCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 3, snapshotOptions(memory.New()))
		c.fill(t)
		c.settle(t)
		n, leave, subscribed := c.follower(t), make(chan struct{}), make(chan error, 1)
		go func() {
			subscribed <- n.engine.Subscribe(t.Context(), []metalog.Position{{Shard: shardA, LSN: 1}}, time.Second, func([]metalog.Update) error {
				<-leave
				return nil
			})
		}()
		synctest.Wait()
		n.cut.Store(true)
		others := c.without(n)
		others.fill(t)
		others.fill(t)
		n.cut.Store(false)
		<-n.engine.Failed()
		if err := n.engine.Err(); !errors.Is(err, journal.ErrTrimmed) || !strings.Contains(err.Error(), "not ended") {
			t.Error(err)
		}
		close(leave)
		if err := <-subscribed; err == nil {
			t.Error("the subscription goes on")
		}
		c.closeAll(t)
	})
}
