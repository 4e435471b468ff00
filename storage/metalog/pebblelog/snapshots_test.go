package pebblelog

import (
	"context"
	"errors"
	"fmt"
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
	"scribe/storage/metalog/journal/memjournal"
)

// snapshotOptions make a snapshot every second in which something was written.
func snapshotOptions(store blob.Store) Options {
	o := seededOptions(1)
	o.Snapshots, o.SnapshotEvery = store, time.Second
	return o
}

// fill appends records of different sizes until the journal has a new snapshot.
func (c *testCell) fill(t testing.TB) {
	t.Helper()
	states, err := c.Open(t.Context(), "test", []record.ShardID{shardA, shardB})
	if err != nil {
		t.Fatal(err)
	}
	before := c.head(t)
	for i := 0; ; i++ {
		a := one(shardA, states[0].Epoch, strings.Repeat("x", i%7*1000+1))
		a.Shards[0].Sequences = []metalog.Sequence{{Producer: uint64(states[0].Epoch), Epoch: 1, First: uint64(i), Last: uint64(i)}}
		if _, err := c.Append(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			if err := c.Trim(t.Context(), shardA, record.LSN(i/2)); err != nil {
				t.Fatal(err)
			}
		}
		if c.head(t).Snapshot > before.Snapshot {
			return
		}
		waitFor(t.Context(), 20*time.Millisecond)
	}
}

func (c *testCell) head(t testing.TB) journal.Head {
	t.Helper()
	head, err := c.nodes[0].store.Open().Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// firstEntry returns the number of the first entry that was not trimmed.
func firstEntry(t testing.TB, store *memjournal.Store) uint64 {
	t.Helper()
	for seq := uint64(1); ; seq++ {
		err := store.Open().Read(t.Context(), seq, seq, func(uint64, []byte) error { return nil })
		if !errors.Is(err, journal.ErrTrimmed) {
			return seq
		}
	}
}

// An empty folder, a damaged one, and one that is behind the trim are replaced by a snapshot, and end up like the others.
func TestSeeding(t *testing.T) {
	damages := map[string]func(t *testing.T, n *testNode){
		"empty": func(_ *testing.T, n *testNode) { n.folder = vfs.NewCrashableMem() },
		"damaged": func(t *testing.T, n *testNode) {
			for _, name := range mustList(t, n.folder, testDir) {
				if strings.HasPrefix(name, "MANIFEST") {
					overwrite(t, n.folder, testDir+"/"+name)
				}
			}
		},
		"behind": func(*testing.T, *testNode) {},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory.New()
				c, entries := newCell(t, 3, snapshotOptions(store))
				c.fill(t)
				c.settle(t)
				n := c.nodes[0]
				n.close(t)
				damage(t, n)
				n.cut.Store(false)
				others := &testCell{nodes: c.nodes[1:]}
				removeShard(t, others, shardB+2)
				others.fill(t)
				others.fill(t)
				if first := firstEntry(t, entries); first == 1 {
					t.Error("the journal was not trimmed")
				}
				c.replace(n, n.open(t))
				c.compare(t)
				if seeds := testutil.ToFloat64(n.engine.metrics.seeds); seeds != 1 || n.engine.Err() != nil {
					t.Errorf("the folder was replaced %v times, %v", seeds, n.engine.Err())
				}
				if removed, err := n.engine.RemovedShards(t.Context(), shardB.Category(), 0); err != nil || len(removed) != 1 || removed[0].Shard != shardB+2 {
					t.Errorf("removed are %+v, %v", removed, err)
				}
				c.closeAll(t)
			})
		})
	}
}

func mustList(t *testing.T, fs vfs.FS, dir string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func overwrite(t *testing.T, fs vfs.FS, path string) {
	t.Helper()
	if err := writeFile(fs, path, []byte(strings.Repeat("damage", 100))); err != nil {
		t.Fatal(err)
	}
}

// Without a snapshot that can be read, a replica that is behind halts, says why, and can be closed.
func TestSeedingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c, _ := newCell(t, 2, snapshotOptions(store))
		n := c.nodes[0]
		n.close(t)
		others := &testCell{nodes: c.nodes[1:]}
		others.fill(t)
		others.fill(t)
		for info, err := range store.List(t.Context(), "meta/main/sst/") {
			if err == nil {
				err = store.Delete(t.Context(), info.Key)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		n.folder = vfs.NewCrashableMem()
		c.replace(n, n.open(t))
		<-n.engine.Failed()
		if err := n.engine.Err(); !errors.Is(err, errSeed) || !errors.Is(err, blob.ErrNotFound) {
			t.Error(err)
		}
		if _, err := n.engine.Tail(t.Context(), []record.ShardID{shardA}); !errors.Is(err, errSeed) {
			t.Error(err)
		}
		c.closeAll(t)
	})
}

// A crash in the middle of replacing the folder's files is completed when it is opened again.
func TestSeedingIsResumed(t *testing.T) {
	const files = 4
	for moved := range files + 1 {
		fs := vfs.NewMem()
		for _, dir := range []string{"d", "d/seed"} {
			if err := fs.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		var listed []string
		for i := range files {
			listed = append(listed, fmt.Sprint("f", i))
			path := "d/seed/" + listed[i]
			if i < moved {
				path = "d/" + listed[i]
			}
			overwrite(t, fs, path)
		}
		overwrite(t, fs, "d/old")
		overwrite(t, fs, "d/LOCK")
		if err := writeFile(fs, "d/SEEDING", []byte(strings.Join(listed, "\n"))); err != nil {
			t.Fatal(err)
		}
		if err := finishSeed(fs, "d"); err != nil {
			t.Fatal(err)
		}
		if got, want := len(mustList(t, fs, "d")), files+1; got != want {
			t.Errorf("after %d files were moved: %v", moved, mustList(t, fs, "d"))
		}
	}
}

// A journal that is older than what was applied halts the replicas: they say so, serve nothing, and can be closed.
func TestJournalWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newCell(t, 1, seededOptions(1))
		n := c.nodes[0]
		states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		backup := store.Copy()
		if _, err := c.Append(t.Context(), one(shardA, states[0].Epoch, "x")); err != nil {
			t.Fatal(err)
		}
		n.close(t)
		store.Restore(backup)
		c.replace(n, n.open(t))
		<-n.engine.Failed()
		if err := n.engine.Err(); !errors.Is(err, journal.ErrWentBack) || !strings.Contains(err.Error(), "halted") {
			t.Error(err)
		}
		if _, err := n.engine.Append(t.Context(), one(shardA, states[0].Epoch, "y")); !errors.Is(err, journal.ErrWentBack) {
			t.Error(err)
		}
		n.close(t)
	})
}

// A full journal refuses groups: nothing of them is seen, and the clock's bound does not move with them. A snapshot makes room.
func TestJournalIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := snapshotOptions(memory.New())
		o.SnapshotEvery = time.Hour
		c, store := newCell(t, 2, o)
		states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		appended := 0
		add := func() error {
			_, err := c.Append(t.Context(), one(shardA, states[0].Epoch, "x"))
			if err == nil {
				appended++
			}
			return err
		}
		for range 20 {
			if err := add(); err != nil {
				t.Fatal(err)
			}
		}
		store.SetCapacity(1)
		for range 10 { // for long enough that the bound is due to move
			if err := add(); !errors.Is(err, journal.ErrFull) {
				t.Fatalf("an append to a full journal: %v", err)
			}
			leader := &c.leader(t).engine.clock
			leader.mu.Lock()
			bound := leader.mu.bound
			leader.mu.Unlock()
			if head := c.head(t); bound > head.Bound {
				t.Fatalf("the leader's bound is %d, that of the journal %d", bound, head.Bound)
			}
			waitFor(t.Context(), 300*time.Millisecond)
		}
		tail, err := c.Tail(t.Context(), []record.ShardID{shardA})
		if err != nil || int(tail[0].NextLSN) != appended+1 {
			t.Errorf("after a refused append: %+v, %v", tail, err)
		}
		store.SetCapacity(2000)
		refused := 0
		for range 500 {
			if err := add(); errors.Is(err, journal.ErrFull) {
				refused++
				waitFor(t.Context(), 3*time.Second)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused == 0 || refused > 250 {
			t.Errorf("%d appends were refused", refused)
		}
		entries, err := c.nodes[1].engine.Read(t.Context(), shardA, 1, 0, 0)
		if err != nil || len(entries) != appended {
			t.Errorf("%d records of %d: %v", len(entries), appended, err)
		}
		c.compare(t)
		c.closeAll(t)
	})
}

// A replica whose first beat was not answered does not take its own head for that of another one, whose silence it would have to wait for.
func TestFirstBeatWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := seededOptions(1)
		options.TakeoverAfter, options.BeatEvery = time.Minute, 250*time.Millisecond
		c, _ := newCell(t, 2, options)
		first := c.leader(t)
		second := c.nodes[0]
		if second == first {
			second = c.nodes[1]
		}
		var away atomic.Int64 // until then changes are not answered, Unix nanoseconds
		second.journal.SetFault(func(ctx context.Context, call memjournal.Call) error {
			switch {
			case call.Kind != memjournal.CallSwap || call.Done:
			case time.Now().UnixNano() < away.Load():
				<-ctx.Done()
				return errCut
			case call.Next.Term > call.Known.Term && away.Load() == 0:
				away.Store(time.Now().Add(3 * time.Second).UnixNano())
			}
			return nil
		})
		if err := first.engine.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		first.cut.Store(true)
		began := time.Now()
		for !second.leads() && time.Since(began) < 10*time.Minute {
			waitFor(t.Context(), 100*time.Millisecond)
		}
		if took := time.Since(began); away.Load() == 0 || took < 2*time.Second || took > 10*time.Second {
			t.Errorf("it leads after %v", took)
		}
		first.cut.Store(false)
		c.closeAll(t)
	})
}

// Hand-overs are orderly: the next replica leads at once, and a failed one does not end the engine.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 2, seededOptions(1))
		first := c.leader(t)
		began := time.Now()
		if err := first.engine.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := c.leader(t)
		if took := time.Since(began); second == first || took > 100*time.Millisecond {
			t.Errorf("%s leads after %s, %v later", second.name, first.name, took)
		}
		if err := first.engine.HandOver(t.Context()); !errors.Is(err, metalog.ErrNotLeader) {
			t.Error(err)
		}
		second.cut.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := second.engine.HandOver(ctx); err == nil {
			t.Error("a hand-over without a journal succeeded")
		}
		second.cut.Store(false)
		c.leader(t)
		c.settle(t)
		if err := second.engine.Err(); err != nil {
			t.Error(err)
		}
		c.closeAll(t)
	})
}

// What is remembered of stored tables are those of the last snapshot, however many compactions have removed.
func TestStoredTablesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c, _ := newCell(t, 1, snapshotOptions(store))
		for range 8 {
			c.fill(t)
		}
		n := c.nodes[0]
		n.close(t)
		var newest blob.Info
		for info, err := range store.List(t.Context(), snapshotPrefix("main")) {
			if err != nil {
				t.Fatal(err)
			}
			newest = info
		}
		list, err := readList(t.Context(), store, newest)
		if err != nil {
			t.Fatal(err)
		}
		listed := map[string]bool{}
		for _, f := range list.Files {
			listed[f.Name] = true
		}
		for name := range n.engine.replica.snapshots.stored {
			if !listed[name] {
				t.Errorf("table %s is remembered, and not in the newest snapshot", name)
			}
		}
	})
}

// After a group of unknown outcome the leader's clock stands before anybody is answered: the entry may be stored, and no watermark above its
// time may be told.
func TestUnknownOutcomeStopsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 1, seededOptions(1))
		e := c.leader(t).engine
		committer := newCommitter(e)
		q := newRequest(tickOp{})
		committer.group = append(committer.group, q)
		if err := committer.failGroup(fmt.Errorf("planted: %w", journal.ErrUnknown)); !errors.Is(err, errDeposed) {
			t.Error(err)
		}
		<-q.done
		e.clock.mu.Lock()
		following := e.clock.mu.following
		e.clock.mu.Unlock()
		if !following || q.err == nil {
			t.Errorf("the clock stands: %v, the call is told %v", following, q.err)
		}
		c.closeAll(t)
	})
}
