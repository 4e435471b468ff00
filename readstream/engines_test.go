package readstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/router"
)

// engineClocks is how far the second engine's clock is behind the first one's.
const engineClocks = 10 * time.Second

// engineHarness is a harness over two engines. The category begins in the first.
type engineHarness struct {
	*harness
	first, second router.Engine
}

func newEngineHarness(t *testing.T) *engineHarness {
	t.Helper()
	h := &engineHarness{harness: newHarness(t)}
	open := func(name string, behind time.Duration) router.Engine {
		e, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem(), Clock: func() int64 { return time.Now().Add(-behind).UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		return router.Engine{Name: name, Log: e}
	}
	h.first, h.second = open("first", 0), open("second", engineClocks)
	log, err := router.New([]router.Engine{h.first, h.second}, router.Options{Root: "first"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	h.close() // of the one engine
	if h.server, err = New(h.cfg, Deps{Log: log, Categories: h.categories}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	h.harness.engine = log
	return h
}

// relocate makes the second engine the home of the category, and moves its logs if all is set.
func (h *engineHarness) relocate(all bool) {
	h.t.Helper()
	r := router.Relocation{Category: testCategoryID, From: h.first, To: h.second, Version: 1}
	_, err := r.MoveHome(h.t.Context())
	if err == nil && all {
		_, err = r.MoveLogs(h.t.Context())
		clear(h.opened) // the next writer opens them again
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// listen takes what comes for a while, so that the stream sends whatever it may send.
func (c *client) listen(d time.Duration) {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < d; {
		c.next()
		c.beats = 0
	}
}

// With two engines there are two clocks. A stream with a window may send nothing that the engine which creates the category's logs can still be
// older than, however far the other one's clock is ahead; and when all has moved, it goes on without a gap.
func TestWindowOverEngines(t *testing.T) {
	for name, window := range map[string]time.Duration{"strict": 0, "window": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newEngineHarness(t)
				old, fresh := shardID(0, 1), shardID(0, 2)
				h.write(100, old)
				c, _ := h.open(earliest, plenty, withWindow(window))
				c.entries(1)
				h.relocate(false)
				c.listen(engineClocks / 2)
				h.write(100, old) // at a time that the second engine's clock has not reached
				c.listen(engineClocks / 10)
				h.write(100, fresh) // created in the second engine, after the other record, with an earlier time
				c.entries(3)
				if at := c.got[1]; at.GetShard() != uint64(fresh) || at.GetTime() >= c.got[2].GetTime() {
					t.Errorf("after the first record came one of %v at %d, then one of %v at %d", record.ShardID(at.GetShard()), at.GetTime(),
						record.ShardID(c.got[2].GetShard()), c.got[2].GetTime())
				}
				h.relocate(true)
				h.write(100, old)
				h.write(100, fresh)
				c.entries(5)
			})
		})
	}
}

// Without a window, a stream goes on from engine to engine as soon as records are there.
func TestStreamFollowsLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newEngineHarness(t)
		old := shardID(0, 1)
		h.write(100, old)
		c, _ := h.open(earliest, plenty)
		c.entries(1)
		h.relocate(true)
		began := time.Now()
		h.write(100, old)
		c.entries(2)
		if took := time.Since(began); took > time.Second {
			t.Errorf("a record after a move came after %v", took)
		}
		// One that begins later reads what is in the first engine, too.
		d, _ := h.open(earliest, plenty, withWindow(0))
		d.entries(2)
	})
}
