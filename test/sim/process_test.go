package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	"scribe/storage/blob"
)

// process is a process of the cell, on a host of its own, through all its lives.
type process struct {
	w    *world
	plan processPlan
	host string
	disk *disk
	// clock is the host's.
	clock *clock

	mu   sync.Mutex
	life *life // nil while it does not run
	// wanted is whether it should run: a life that ends by itself is followed by another one.
	wanted bool
	// held is whether an operator keeps it from running. adopt is the claim that retention is started with.
	held  bool
	adopt string
	// lives counts starts, fatal the failures that ended a life by themselves.
	lives, fatal int
	// begun counts lives, with those of recoveries.
	begun int
}

// life is one run of a process.
type life struct {
	app    *app.App
	gate   *gate
	access *access
	cancel context.CancelFunc
	// stopping is set by whoever stops the app; giveUp ends an orderly stop that has begun.
	stopping atomic.Bool
	giveUp   chan struct{}
}

func (p *process) url() string { return "http://" + net.JoinHostPort(p.host, "7420") }

// config is what the process runs with: the defaults, but for what would take memory or hours.
func (p *process) config() app.Config {
	c := app.DefaultConfig()
	c.Roles, c.Data, c.Listen, c.ID = p.plan.Roles, "/data", net.JoinHostPort(p.host, "7420"), p.plan.Name
	c.Insecure = true
	if p.plan.Node {
		c.Node, c.Cluster, c.Blobs.Path = p.plan.Name, p.w.cluster(), "/blobs"
	}
	if !c.Has(app.ControlPlane) && !slices.Equal(c.Roles, []app.Role{app.Scribed}) {
		c.Control = p.w.first(app.ControlPlane).url()
	}
	if !c.Has(app.Metalog) && !slices.Equal(c.Roles, []app.Role{app.Scribed}) {
		c.Metalog = p.w.first(app.Metalog).url()
	}
	if c.Has(app.Scribed) && !c.Has(app.WriteProxy) {
		c.Upstream = p.w.upstream()
	}
	c.MetadataCache = 8 << 20
	c.ReadProxy.CacheBytes = 8 << 20
	c.Scribed.Spool.BallastBytes, c.Scribed.Spool.SegmentBytes, c.Scribed.Spool.MaxBytes = 64<<10, 64<<10, 64<<20
	// A blob may wait for its commit as long as a flush is repeated, and may arrive late (storeFaults.late).
	c.Retention.Grace, c.Retention.Linger, c.Retention.SweepInterval, c.Retention.Interval = 3*time.Minute, time.Minute, time.Minute, 5*time.Second
	c.Retention.LogGrace = 5 * time.Second
	if p.w.plan.Clocks {
		c.Retention.Grace += p.w.plan.maxSkew() // a blob of the clock that is furthest behind, beside one that is ahead
	}
	c.Retention.BoundaryStep, c.Retention.Adopt = 30*time.Second, p.adopt
	if p.w.plan.Busy {
		c.WriteProxy.MicroShardBytes = 1 << 10
	}
	if p.w.plan.Far {
		floor := 250 * time.Millisecond
		c.FlushFloor = &floor
	}
	return c
}

// start begins a life, and goes on trying until one has begun or the world ends.
func (p *process) start() {
	p.mu.Lock()
	p.wanted = true
	p.mu.Unlock()
	p.w.running.Go(p.keepRunning)
}

// keepRunning starts the process, as a supervisor does, until it runs or is not wanted any more.
func (p *process) keepRunning() {
	for {
		p.mu.Lock()
		if !p.wanted || p.held || p.life != nil || p.w.over() {
			p.mu.Unlock()
			return
		}
		ctx, l, host := p.beginLifeLocked()
		p.lives++
		config := p.config()
		p.mu.Unlock()
		a, err := app.Start(ctx, config, app.Options{Logger: p.w.logger(p.plan.Name), Version: "simulated", Host: host})
		p.mu.Lock()
		if p.life != l { // it was killed while it started
			p.mu.Unlock()
			if a != nil {
				_ = (&life{app: a, giveUp: l.giveUp}).end(0)
			}
			return
		}
		if err == nil {
			l.app = a
			p.mu.Unlock()
			p.w.running.Go(func() { p.watch(l) })
			return
		}
		p.life = nil
		p.mu.Unlock()
		p.sever(l)
		p.disk.crash(false) // goroutines that it leaves behind hold no lock of the disk, and no longer write to it
		p.w.note("%s does not start: %v", p.plan.Name, err)
		time.Sleep(time.Second)
	}
}

// beginLifeLocked makes the life that the host runs from now on, and what its program reaches of the host. p.mu is held.
func (p *process) beginLifeLocked() (context.Context, *life, app.Host) {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{gate: newGate(), cancel: cancel, giveUp: make(chan struct{})}
	p.begun++
	name := fmt.Sprintf("%s life %d", p.plan.Name, p.begun)
	l.access = &access{store: p.w.store, gate: l.gate, name: name}
	p.life = l
	host := app.Host{
		Listen: func(_ context.Context, _, address string) (net.Listener, error) {
			return p.w.net.listen(p.host, address, l.gate)
		},
		Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
			return p.w.net.dial(ctx, p.host, address, l.gate)
		},
		FS:        p.disk.mount(),
		Now:       p.clock.now,
		OpenBlobs: func(context.Context, app.Config) (blob.Store, error) { return l.access, nil },
		Random:    p.w.randomOf(name),
		CPUTime:   func() time.Duration { return 0 },
	}
	if p.plan.Node {
		host.Replication = p.w.etcd.replication(p.host, l.gate)
		// A replica's write-ahead log stays empty: what is in the journal is durable. Pebble syncs it as it closes, with its mutex held.
		host.FS = p.disk.mountInstant()
	}
	return ctx, l, host
}

// watch starts the process again after a fatal failure, as a supervisor does.
func (p *process) watch(l *life) {
	select {
	case err := <-l.app.Failed():
		p.mu.Lock()
		if p.life != l {
			p.mu.Unlock()
			return
		}
		p.life = nil
		p.fatal++
		p.mu.Unlock()
		p.w.note("%s failed: %v", p.plan.Name, err)
		p.sever(l)
		p.disk.crash(false)
		p.w.net.disconnect(p.host)
		_ = l.end(0)
		time.Sleep(time.Second)
		p.keepRunning()
	case <-p.w.done:
	}
}

// sever cuts a life that is gone from the world: what its goroutines still do has no effect.
func (p *process) sever(l *life) {
	l.access.fence()
	l.gate.gone.Store(true)
	l.gate.resume()
	p.w.net.set(func(n *network) { delete(n.stopped, p.host) })
	l.cancel()
}

// end stops the app within a time; 0 frees what it holds without any order. The first caller does it.
func (l *life) end(within time.Duration) error {
	if l.stopping.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	go func() {
		select {
		case <-l.giveUp:
			cancel()
		case <-ctx.Done():
		}
	}()
	return l.app.Stop(ctx)
}

// kill is kill -9, or a loss of power on its host.
func (p *process) kill(powerLoss bool) {
	p.mu.Lock()
	p.wanted = false
	l := p.life
	p.life = nil
	started := l != nil && l.app != nil
	p.mu.Unlock()
	if l != nil {
		close(l.giveUp)
		p.sever(l)
	}
	p.disk.crash(powerLoss)
	if powerLoss {
		p.w.net.powerOff(p.host)
	} else {
		p.w.net.disconnect(p.host)
	}
	if started {
		p.w.running.Go(func() { _ = l.end(0) })
	}
}

// stop is SIGTERM; it returns when the process has ended.
func (p *process) stop() error {
	p.mu.Lock()
	p.wanted = false
	l := p.life
	started := l != nil && l.app != nil
	p.mu.Unlock()
	if !started {
		return nil
	}
	err := l.end(30 * time.Second)
	p.mu.Lock()
	if p.life != l { // it was killed meanwhile
		p.mu.Unlock()
		return err
	}
	p.life = nil
	p.mu.Unlock()
	p.sever(l)
	p.disk.crash(false)
	p.w.net.disconnect(p.host)
	return err
}

// hold stops the process, and keeps whoever would start it from doing so until it is released.
func (p *process) hold() {
	p.mu.Lock()
	p.held = true
	p.mu.Unlock()
	if err := p.stop(); err != nil {
		p.w.note("%s stopped: %v", p.plan.Name, err)
	}
	p.mu.Lock()
	running := p.life != nil
	p.mu.Unlock()
	if running { // it was about to start
		p.kill(false)
	}
}

// release lets the process run again. Its retention adopts a claim, if there is one.
func (p *process) release(adopt string) {
	p.mu.Lock()
	p.held, p.adopt = false, adopt
	p.mu.Unlock()
	p.w.net.powerOn(p.host)
	p.start()
}

// pause is SIGSTOP, resume SIGCONT: nothing that the process does reaches the outside, and nothing reaches it. Its timers run on.
func (p *process) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil {
		p.life.gate.stop()
		p.w.net.set(func(n *network) { n.stopped[p.host] = true })
	}
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w.net.set(func(n *network) { delete(n.stopped, p.host) })
	if p.life != nil {
		p.life.gate.resume()
	}
}

// client is a process on a host outside the cell.
type client struct {
	w         *world
	host      string
	gate      *gate
	transport *rpc.Transport
}

func (w *world) newClient() *client {
	n := w.clients.Add(1)
	host := clientHosts + fmt.Sprintf("%d.%d", n/250, 1+n%250)
	g := newGate()
	return &client{w: w, host: host, gate: g, transport: rpc.NewTransport(func(ctx context.Context, _, address string) (net.Conn, error) {
		return w.net.dial(ctx, host, address, g)
	})}
}

// kill ends the client as kill -9 does: nothing of what it still does reaches anybody.
func (c *client) kill() {
	c.gate.gone.Store(true)
	c.w.net.disconnect(c.host)
}

// logger returns the logger of a process: its lines are in the timeline.
func (w *world) logger(name string) *slog.Logger {
	return slog.New(slog.NewTextHandler(&timelineWriter{w: w, name: name}, &slog.HandlerOptions{
		Level: w.level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		},
	}))
}

func rngOf(seed uint64, purpose string) *rand.Rand {
	return rand.New(rand.NewPCG(seed, hashOf(purpose)))
}

// randomOf returns what the program draws from somewhere. It follows from the seed: take each purpose once.
func (w *world) randomOf(purpose string) *entropy.Source {
	return entropy.NewSeeded(w.plan.Seed, purpose)
}

// hashOf is FNV-1a.
func hashOf(text string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(text) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}
