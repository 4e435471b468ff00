package pebblelog

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// slowDisk holds up the tables of a node's folder.
type slowDisk struct {
	release atomic.Pointer[chan struct{}] // nil while it is fast
}

func (d *slowDisk) stall() (release func()) {
	held := make(chan struct{})
	d.release.Store(&held)
	return func() { d.release.Store(nil); close(held) }
}

func (d *slowDisk) inject(op errorfs.Op) error {
	if held := d.release.Load(); held != nil && strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		<-*held
	}
	return nil
}

// newCellOnDisks returns a cell of two, whose disks can be held up.
func newCellOnDisks(t *testing.T) (*testCell, map[*testNode]*slowDisk) {
	t.Helper()
	disks := map[*testNode]*slowDisk{}
	c, _ := newCell(t, 2, seededOptions(1), func(n *testNode) {
		disks[n] = &slowDisk{}
		n.wrap = errorfs.InjectorFunc(disks[n].inject)
	})
	return c, disks
}

// stalledCell returns a cell whose leader waits for a flush that does not end, and with an append that waits for the leader.
func stalledCell(t *testing.T) (c *testCell, leader *testNode, release func(), waiting <-chan error) {
	t.Helper()
	c, disks := newCellOnDisks(t)
	leader = c.leader(t)
	states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
	if err != nil {
		t.Fatal(err)
	}
	release = disks[leader].stall()
	var appended atomic.Int64
	result := make(chan error, 1)
	go func() {
		for {
			if _, err := leader.engine.Append(t.Context(), one(shardA, states[0].Epoch, strings.Repeat("x", 5000))); err != nil {
				result <- err
				return
			}
			appended.Add(1)
			waitFor(t.Context(), time.Millisecond) // appends take no time here
		}
	}()
	for before := int64(-1); before < appended.Load(); waitFor(t.Context(), 300*time.Millisecond) {
		before = appended.Load()
	}
	return c, leader, release, result
}

// A leader that waits for a slow flush goes on beating: nobody takes over, and its calls are answered when the flush ends.
func TestSlowFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, leader, release, waiting := stalledCell(t)
		term := c.head(t).Term
		waitFor(t.Context(), 5*time.Second)
		if head := c.head(t); head.Term != term || !leader.leads() {
			t.Errorf("term %d after %d: another replica took over", head.Term, term)
		}
		release()
		waitFor(t.Context(), time.Second)
		select {
		case err := <-waiting:
			t.Errorf("an append failed: %v", err)
		default:
		}
		if err := leader.engine.HandOver(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waiting; !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("an append after the hand-over: %v", err)
		}
		c.compare(t)
		c.closeAll(t)
	})
}

// A leader whose flush does not end does not stay the leader: another one takes over, and what waits is refused, so that it can go there.
func TestStalledFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stalled, release, waiting := stalledCell(t)
		if err := <-waiting; !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("an append at a leader that can't commit: %v", err)
		}
		if next := c.leader(t); next == stalled {
			t.Error("it still leads")
		}
		if _, err := c.Open(t.Context(), "another", []record.ShardID{shardA}); err != nil {
			t.Error(err)
		}
		release()
		c.compare(t)
		c.closeAll(t)
	})
}

// A leader that waits for a slow flush hands over when it is asked to.
func TestHandOverWhileStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stalled, release, waiting := stalledCell(t)
		began := time.Now()
		if err := stalled.engine.HandOver(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waiting; !errors.Is(err, metalog.ErrNotLeader) {
			t.Errorf("an append that waits: %v", err)
		}
		if next := c.leader(t); next == stalled || time.Since(began) > 100*time.Millisecond {
			t.Errorf("%s leads after %v", next.name, time.Since(began))
		}
		release()
		c.compare(t)
		c.closeAll(t)
	})
}

// A read at a replica that is behind is refused when half of its time is over: the other half is for another replica.
func TestReadLeavesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, disks := newCellOnDisks(t)
		leader := c.leader(t)
		behind := c.nodes[0]
		if behind == leader {
			behind = c.nodes[1]
		}
		states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		release := disks[behind].stall()
		for n := 0; leader.engine.Position().Applied < behind.engine.Position().Applied+10; n++ {
			if n == 100_000 {
				t.Fatal("the replica on the disk that is held up follows")
			}
			if _, err := leader.engine.Append(t.Context(), one(shardA, states[0].Epoch, strings.Repeat("x", 5000))); err != nil {
				t.Fatal(err)
			}
			waitFor(t.Context(), time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		began := time.Now()
		_, err = behind.engine.Tail(ctx, []record.ShardID{shardA})
		if took := time.Since(began); err == nil || ctx.Err() != nil || took < 2*time.Second || took > 4*time.Second {
			t.Errorf("after %v of six seconds: %v", took, err)
		}
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ask another one") {
			t.Errorf("%v: it is the replica's time that was over, not the caller's", err)
		}
		release()
		c.compare(t)
		c.closeAll(t)
	})
}
