package batcher

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/discovery"
	scribev1 "scribe/proto/scribe/v1"
)

// pushTaker is a read proxy that keeps what is pushed to it.
type pushTaker struct {
	calls faults
	mu    sync.Mutex
	// wanted is the list, version its version.
	wanted  []*scribev1.WantedCategory
	version uint64
	asked   int // requests
	blocks  []*scribev1.PushedBlock
}

func (x *pushTaker) want(all bool, categories ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.version++
	x.wanted = nil
	for _, name := range categories {
		x.wanted = append(x.wanted, &scribev1.WantedCategory{Name: name, All: all})
	}
}

// Push implements rpc.PushService.
func (x *pushTaker) Push(ctx context.Context, req *scribev1.PushRequest) (res *scribev1.PushResponse, err error) {
	err = x.calls.run(ctx, func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.asked++
		x.blocks = append(x.blocks, req.GetBlocks()...)
		res = &scribev1.PushResponse{Version: x.version}
		if req.GetVersion() != x.version {
			res.Wanted = x.wanted
		}
		return nil
	})
	return res, err
}

// take returns the blocks that were pushed since the last call.
func (x *pushTaker) take() []*scribev1.PushedBlock {
	x.mu.Lock()
	defer x.mu.Unlock()
	blocks := x.blocks
	x.blocks = nil
	return blocks
}

// pushBubble runs a batcher in virtual time with read proxies named p0, p1 and so on, which want a category each time.
func pushBubble(t *testing.T, cfg Config, proxies int, fn func(t *testing.T, c *cell, list *[]ReadProxy, takers []*pushTaker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		takers := make([]*pushTaker, proxies)
		list := make([]ReadProxy, proxies)
		for i := range takers {
			takers[i] = &pushTaker{version: 1}
			list[i] = ReadProxy{URL: fmt.Sprintf("http://p%d", i), Service: takers[i]}
		}
		c := newCellWith(t, cfg, nil, nil, func(d *Deps) { d.ReadProxies = func() []ReadProxy { return list } })
		fn(t, c, &list, takers)
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := c.pusher.queuedBytes(); n != 0 {
			t.Errorf("%d bytes are still charged", n)
		}
	})
}

// commitNoise commits a frame whose payload does not compress.
func (c *cell) commitNoise(category string, n int) {
	c.t.Helper()
	noise := make([]byte, n)
	_, _ = rand.Read(noise)
	c.commit(makeFrame(c.t, category, 0, nil, string(noise)))
	synctest.Wait()
}

func (c *cell) pushes(outcome string) float64 {
	c.t.Helper()
	return counterValue(c.t, c.metrics.pushed.WithLabelValues(outcome))
}

// What a read proxy wants is pushed to it as it is put, and nothing else.
func TestWantedBlocksArePushed(t *testing.T) {
	pushBubble(t, testConfig(), 1, func(t *testing.T, c *cell, _ *[]ReadProxy, takers []*pushTaker) {
		x := takers[0]
		x.want(false, "alpha")
		c.commitNoise("alpha", 100) // makes the proxy be asked
		if x.asked != 1 || len(x.take()) != 0 {
			t.Fatalf("asked %d times", x.asked)
		}
		c.commitNoise("beta", 100)
		if x.asked != 1 {
			t.Fatalf("asked %d times within a second", x.asked)
		}
		// At the put, not at the commit.
		hold := make(chan struct{})
		c.store.puts.plan(step{hold: hold})
		done := make(chan struct{})
		go func() { c.commit(makeFrame(t, "alpha", 0, nil, "early")); close(done) }()
		synctest.Wait()
		blocks := x.take()
		if len(blocks) != 1 || strings.Join(blocks[0].GetCategories(), " ") != "alpha" {
			t.Fatalf("pushed %v", blocks)
		}
		close(hold)
		<-done
		// What is pushed is what is put.
		p, err := pointer.Decode(blocks[0].GetPointer())
		if err != nil {
			t.Fatal(err)
		}
		stored := make([]byte, p.BlockLen)
		if err := c.store.ReadAt(t.Context(), p.Key(), stored, int64(p.BlockOffset)); err != nil || !bytes.Equal(stored, blocks[0].GetData()) {
			t.Fatalf("the block is not the one in the store: %v", err)
		}
		// What is no longer wanted is no longer pushed.
		x.want(false)
		<-time.After(askEvery)
		c.commitNoise("alpha", 100)
		x.take()
		c.commitNoise("alpha", 100)
		if n := len(x.take()); n != 0 {
			t.Errorf("%d blocks were pushed that nobody wants", n)
		}
	})
}

// A block goes to the home of its blob when any read proxy wants its category, and to those that want all. Homes follow the list.
func TestPushesGoHome(t *testing.T) {
	pushBubble(t, testConfig(), 4, func(t *testing.T, c *cell, list *[]ReadProxy, takers []*pushTaker) {
		takers[1].want(false, "alpha")
		takers[2].want(true, "beta")
		c.commitNoise("alpha", 100)
		check := func(category string, alls ...int) {
			t.Helper()
			urls := make([]string, len(*list))
			for i, x := range *list {
				urls[i] = x.URL
			}
			got := map[int]int{}
			for range 40 {
				c.commitNoise(category, 100)
				for i, x := range takers {
					for _, b := range x.take() {
						p, err := pointer.Decode(b.GetPointer())
						if err != nil {
							t.Fatal(err)
						}
						got[i]++
						home := urls[discovery.HomeOf(p.Blob, urls)] == fmt.Sprintf("http://p%d", i)
						if all := len(alls) > 0 && alls[0] == i; !home && !all {
							t.Errorf("pushed to %d, which is not its home", i)
						}
					}
				}
			}
			if len(got) != len(*list) || len(alls) > 0 && got[alls[0]] != 40 {
				t.Errorf("pushed to %v", got)
			}
		}
		check("alpha")
		check("beta", 2)
		*list = append((*list)[1:3:3], ReadProxy{URL: "http://p0", Service: takers[0]}) // 3 leaves
		c.commitNoise("alpha", 100)
		for _, x := range takers {
			x.take()
		}
		check("alpha")
		if n := len(takers[3].take()); n != 0 {
			t.Errorf("%d blocks were pushed to a proxy that left", n)
		}
	})
}

// A read proxy that hangs or fails delays no commit and holds no more than the bound. It is left alone for a while, and gets
// blocks again afterwards.
func TestSlowReadProxyDelaysNothing(t *testing.T) {
	cfg := testConfig()
	cfg.PushBytes = 50_000
	pushBubble(t, cfg, 1, func(t *testing.T, c *cell, _ *[]ReadProxy, takers []*pushTaker) {
		x := takers[0]
		x.want(false, "alpha")
		c.commitNoise("alpha", 100)
		hold := make(chan struct{})
		x.calls.plan(step{hold: hold})
		begin := time.Now()
		for range 10 {
			c.commitNoise("alpha", 10_000)
			if n := c.pusher.queuedBytes(); n > cfg.PushBytes {
				t.Fatalf("%d bytes are queued", n)
			}
		}
		if d := time.Since(begin); d != 0 {
			t.Errorf("commits took %v", d)
		}
		if n := c.pushes(pushFull); n != 6 {
			t.Errorf("%v blocks dropped, want 6", n)
		}
		<-time.After(pushTimeout) // the request fails, and what waits is dropped
		synctest.Wait()
		if failed, unavailable := c.pushes(pushFailed), c.pushes(pushUnavailable); failed != 1 || unavailable != 3 {
			t.Errorf("%v blocks failed, %v were dropped for it", failed, unavailable)
		}
		asked := x.asked
		c.commitNoise("alpha", 100)
		if x.asked != asked || c.pushes(pushUnavailable) != 4 {
			t.Error("a failing proxy was asked again at once")
		}
		<-time.After(minPushPause)
		c.commitNoise("alpha", 100)
		if n := len(x.take()); n != 1 {
			t.Errorf("%d blocks were pushed after the pause", n)
		}
	})
}

// The rate of pushes is bounded, and a block that waited for too long is not sent.
func TestPushRate(t *testing.T) {
	cfg := testConfig()
	cfg.PushBytesPerSecond = 1
	pushBubble(t, cfg, 1, func(t *testing.T, c *cell, _ *[]ReadProxy, takers []*pushTaker) {
		x := takers[0]
		x.want(false, "alpha")
		c.commitNoise("alpha", 100)
		c.pusher.pace.SetBurst(15_000)
		for range 3 {
			c.commitNoise("alpha", 10_000)
		}
		if sent, paced := c.pushes(pushSent), c.pushes(pushPaced); sent != 1 || paced != 2 {
			t.Errorf("%v blocks sent, %v over the rate", sent, paced)
		}
	})
	pushBubble(t, testConfig(), 1, func(t *testing.T, c *cell, _ *[]ReadProxy, takers []*pushTaker) {
		x := takers[0]
		x.want(false, "alpha")
		c.commitNoise("alpha", 100)
		x.calls.plan(step{delay: pushTimeout - time.Millisecond})
		c.commitNoise("alpha", 100)
		<-time.After(time.Millisecond)
		c.commitNoise("alpha", 100) // waits behind the slow request, but not too long
		<-time.After(pushTimeout)
		if sent, late := c.pushes(pushSent), c.pushes(pushLate); sent != 2 || late != 0 {
			t.Errorf("%v blocks sent, %v late", sent, late)
		}
		u, target := c.pusher, c.pusher.mu.targets["http://p0"]
		u.mu.Lock()
		target.queue = append(target.queue, queuedPush{&scribev1.PushedBlock{Data: []byte("x")}, time.Now().Add(-latePush - 1)})
		u.mu.bytes++
		u.startTarget(target)
		u.mu.Unlock()
		synctest.Wait()
		if late := c.pushes(pushLate); late != 1 {
			t.Errorf("%v blocks late", late)
		}
	})
}

// Without a budget nothing is pushed, and nobody is asked.
func TestNoPushBudget(t *testing.T) {
	cfg := testConfig()
	cfg.PushBytes = 0
	pushBubble(t, cfg, 1, func(t *testing.T, c *cell, _ *[]ReadProxy, takers []*pushTaker) {
		takers[0].want(false, "alpha")
		c.commitNoise("alpha", 100)
		c.commitNoise("alpha", 100)
		if takers[0].asked != 0 {
			t.Error("a read proxy was asked")
		}
	})
}
