package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/producer"
	"scribe/readproxy"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// countedStore counts what is read.
type countedStore struct {
	blob.Store
	gets atomic.Int64
}

func (s *countedStore) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	s.gets.Add(1)
	return s.Store.ReadAt(ctx, key, dst, off)
}

// Close leaves the store to the other processes of the cell.
func (s *countedStore) Close() error { return nil }

// pushCell is a cell over one store in memory.
type pushCell struct {
	t     *testing.T
	store *countedStore
	apps  []*App
	round int
	dead  *App
}

// startProcess starts a process of the cell. The first one has the control plane and the logs.
func (c *pushCell) startProcess(wiring Wiring, change func(*Config), roles ...Role) {
	c.t.Helper()
	cfg := DefaultConfig()
	cfg.Data, cfg.Listen, cfg.Roles = c.t.TempDir(), "127.0.0.1:0", roles
	if len(c.apps) > 0 {
		cfg.Control, cfg.Metalog = c.apps[0].URL(), c.apps[0].URL()
	}
	// What is proven is that blocks are pushed, not how fast this machine is.
	cfg.ReadProxy.PushWait = time.Second
	change(&cfg)
	a, err := Start(c.t.Context(), cfg, Options{
		Logger: slog.New(slog.DiscardHandler), Version: "test", Wiring: wiring,
		Host: Host{OpenBlobs: func(context.Context, Config) (blob.Store, error) { return c.store, nil }},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.apps = append(c.apps, a)
	c.t.Cleanup(func() {
		if a != c.dead {
			stopNow(c.t, a)
		}
	})
}

// sum returns the sum of a metric over the processes, with one of its labels if that is not empty.
func (c *pushCell) sum(name, label string) (sum float64) {
	c.t.Helper()
	for _, a := range c.apps {
		families, err := a.registry.Gather()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name && (label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label) {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestTailCausesNoReads: consumers that follow a category get what is committed without a single read of the store, wherever its read
// proxies are and however clients find them, once a read at the tail has made the category wanted.
func TestTailCausesNoReads(t *testing.T) {
	others := []Role{ControlPlane, Metalog, Batcher, WriteProxy, ReadStream, Retention}
	for _, c := range []struct {
		name   string
		wiring Wiring
		// roles of the first process; another process has the read proxy for each of proxies. via is the process that consumers name.
		roles   []Role
		proxies int
		via     int
		// shared: memcached keeps the blocks, and memory none.
		shared bool
		// categories of a flush share blocks if there are several.
		categories int
	}{
		{name: "one process", wiring: Direct, roles: AllRoles, categories: 1},
		{name: "one process, shared blocks", wiring: Direct, roles: AllRoles, categories: 3},
		{name: "one process, over HTTP", wiring: InMemory, roles: AllRoles, categories: 1},
		{name: "homes", roles: others, proxies: 3, categories: 2},
		{name: "one of several", roles: others, proxies: 3, via: 2, categories: 2},
		{name: "memcached", wiring: Direct, roles: AllRoles, shared: true, categories: 1},
		{name: "homes and memcached", roles: others, proxies: 2, shared: true, categories: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := &pushCell{t: t, store: &countedStore{Store: memory.New()}}
			change := func(*Config) {}
			if c.shared {
				cache := memcachedtest.Start(t)
				change = func(cfg *Config) {
					cfg.ReadProxy.Memcached.Servers, cfg.ReadProxy.Memcached.Timeout = []string{cache.Addr}, time.Minute // a block that comes late is read
					cfg.ReadProxy.Rules = []readproxy.Rule{{Pattern: "*", Memory: readproxy.KeepNever}}
				}
			}
			x.startProcess(c.wiring, change, c.roles...)
			for range c.proxies {
				x.startProcess(Direct, change, ReadProxy)
			}
			x.followWithoutReads(c.via, c.categories)
		})
	}
}

// followWithoutReads follows categories by way of a process, until blocks are pushed. From then on nothing is read from the store.
func (c *pushCell) followWithoutReads(via, categories int) {
	t := c.t
	c.round++
	category := func(n int) string { return fmt.Sprintf("c%d.%d", c.round, n) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := producer.New(c.apps[0].URL(), producer.WithAck(producer.AckCommitted), producer.WithLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.WithoutCancel(ctx)) }()
	type follower struct {
		*consumer.Consumer
		next func() (string, error)
	}
	var followers []follower
	write := func(i int) {
		t.Helper()
		for n := range categories {
			p.Log(category(n), fmt.Appendf(nil, "message %d", i))
		}
		if err := p.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	follow := func(i int) {
		t.Helper()
		write(i)
		want := fmt.Sprintf("message %d", i)
		for n := range followers {
			if got, err := followers[n].next(); err != nil || got != want {
				t.Fatalf("category %d: got %q and %v, want %q", n, got, err, want)
			}
		}
	}
	write(0)
	for n := range categories {
		f, err := consumer.New(c.apps[via].URL(), category(n), consumer.WithStart(consumer.Earliest()), consumer.WithWindow(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		messages := make(chan string)
		failed := make(chan error, 1)
		go func() {
			for rec, err := range f.Records(ctx) {
				if err != nil {
					failed <- err
					return
				}
				select {
				case messages <- string(rec.Payload):
				case <-ctx.Done():
					return
				}
			}
		}()
		followers = append(followers, follower{f, func() (string, error) {
			select {
			case m := <-messages:
				return m, nil
			case err := <-failed:
				return "", err
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}})
		if got, err := followers[n].next(); err != nil || got != "message 0" {
			t.Fatalf("first got %q and %v", got, err)
		}
	}
	// A read of each category makes it wanted, and batchers ask once a second.
	i := 1
	for steady := 0; steady < 50; i++ {
		before := c.store.gets.Load()
		follow(i)
		if steady++; c.store.gets.Load() != before {
			steady = 0
		}
	}
	reads, pushed := c.store.gets.Load(), c.sum("scribe_batcher_pushed_blocks_total", "sent")
	for range 200 {
		follow(i)
		i++
	}
	if n := c.store.gets.Load() - reads; n != 0 {
		t.Errorf("%d reads of the store while 200 writes were followed", n)
	}
	if n := c.sum("scribe_batcher_pushed_blocks_total", "sent") - pushed; n < 190 {
		t.Errorf("%v blocks were pushed of 200 writes", n)
	}
}

// TestReadProxyDiesWhilePushing: a read proxy that dies, and one that joins, cost consumers nothing but time; blocks go to the homes that
// are left.
func TestReadProxyDiesWhilePushing(t *testing.T) {
	x := &pushCell{t: t, store: &countedStore{Store: memory.New()}}
	quick := func(cfg *Config) { cfg.LeaseTTL = time.Second }
	x.startProcess(Direct, quick, ControlPlane, Metalog, Batcher, WriteProxy, ReadStream)
	for range 2 {
		x.startProcess(Direct, quick, ReadProxy)
	}
	x.followWithoutReads(0, 1)
	x.dead, x.apps = x.apps[2], x.apps[:2]
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // at once: requests are cut off
		_ = x.dead.Stop(ctx)
	}()
	x.followWithoutReads(0, 1)
	<-stopped
	x.startProcess(Direct, quick, ReadProxy)
	x.followWithoutReads(0, 1)
}
