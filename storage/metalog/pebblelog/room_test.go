package pebblelog

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
)

// The disk of the replica that leads is full: another one takes over, nothing acknowledged is lost, and the full one can be closed,
// or goes on when there is room again.
func TestFullDisk(t *testing.T) {
	for name, closes := range map[string]bool{"closed": true, "room again": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fillDisk(t, closes) })
		})
	}
}

func fillDisk(t *testing.T, closes bool) {
	c, _ := newCell(t, 2, seededOptions(1))
	full := c.leader(t)
	full.close(t)
	var noRoom atomic.Bool
	full.wrap = errorfs.InjectorFunc(func(op errorfs.Op) error {
		if noRoom.Load() && strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return syscall.ENOSPC
		}
		return nil
	})
	c.replace(full, full.open(t))
	c.settle(t)
	for leader := c.leader(t); leader != full; leader = c.leader(t) {
		if err := leader.engine.HandOver(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
	if err != nil {
		t.Fatal(err)
	}
	noRoom.Store(true)
	next := record.LSN(1)
	for full.leads() || int(next) < 200 {
		a := one(shardA, states[0].Epoch, strings.Repeat("x", 5000))
		a.Shards[0].ExpectLSN = next
		if _, err := c.Append(t.Context(), a); err == nil {
			next++
		} else if !errors.Is(err, errNoRoom) {
			t.Fatal(err)
		}
	}
	if closes {
		began := time.Now()
		full.close(t)
		if took := time.Since(began); took > flushLimit {
			t.Errorf("closing took %v", took)
		}
		noRoom.Store(false)
		c.replace(full, full.open(t))
	}
	noRoom.Store(false)
	c.compare(t)
	if tail, err := full.engine.Tail(t.Context(), []record.ShardID{shardA}); err != nil || tail[0].NextLSN != next {
		t.Errorf("%+v, %v: %d records were acknowledged", tail, err, next-1)
	}
	c.closeAll(t)
}

// A replica closes on a full disk that nothing was written to since: it does not try to write its folder for as long as it may.
func TestCloseOnFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 1, seededOptions(1))
		n := c.leader(t)
		n.close(t)
		const many = 1000
		var noRoom atomic.Bool
		var refused atomic.Int64
		n.wrap = errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !noRoom.Load() || !strings.HasSuffix(op.Path, ".sst") || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return nil
			}
			if refused.Add(1) > many { // time stands still meanwhile
				noRoom.Store(false)
			}
			return syscall.ENOSPC
		})
		c.replace(n, n.open(t))
		c.settle(t)
		c.leader(t)
		states, err := c.Open(t.Context(), "test", []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Append(t.Context(), one(shardA, states[0].Epoch, "x")); err != nil {
			t.Fatal(err)
		}
		noRoom.Store(true)
		n.close(t)
		if refused.Load() == 0 || refused.Load() > many {
			t.Errorf("%d writes were refused", refused.Load())
		}
	})
}
