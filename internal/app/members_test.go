package app

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/membership"
	"scribe/internal/rpc"
	"scribe/internal/units"
	scribev1 "scribe/proto/scribe/v1"
)

// TestStartWithoutControlPlane: a write proxy that starts while the control plane is away takes writes with the categories and the
// batchers that it knew last, and becomes a member when the control plane is back.
func TestStartWithoutControlPlane(t *testing.T) {
	dir := t.TempDir()
	// Short for the test's sake: without the control plane a process waits as long before it serves. A member that a busy machine keeps
	// from renewing for longer is none for a moment.
	short := units.Duration(2 * time.Second)
	up := func(name, listen, control, metalog string, roles ...Role) *App {
		t.Helper()
		a, err := start(t, Direct, func(c *Config) {
			c.Roles, c.Data, c.Listen, c.Control, c.Metalog, c.LeaseTTL = roles, filepath.Join(dir, name), listen, control, metalog, short
			c.Blobs.Path = filepath.Join(dir, "blobs")
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	const anywhere = "127.0.0.1:0"
	door := newDoor(t)
	control := up("control", anywhere, "", "", ControlPlane)
	door.leadTo(control)
	logs := up("logs", anywhere, door.url(), "", Metalog)
	batch := up("batch", anywhere, door.url(), logs.URL(), Batcher)
	proxy := up("proxy", anywhere, door.url(), "", WriteProxy)
	defer func() {
		for _, a := range []*App{proxy, batch, logs, control} {
			stopNow(t, a)
		}
	}()
	write := func() error {
		transport := rpc.NewTransport(nil)
		defer transport.Close()
		_, err := rpc.NewWriteClient(transport, proxy.URL()).Publish(t.Context(), &scribev1.PublishRequest{
			Category: "c", Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "m"}}},
		})
		return err
	}
	retry := func() {
		t.Helper()
		for err := write(); err != nil; err = write() {
			if !rpc.Retryable(err) {
				t.Fatal(err)
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-t.Context().Done():
				t.Fatal(err)
			}
		}
	}
	retry()
	stopNow(t, proxy)
	door.leadTo(nil)
	stopNow(t, control)
	proxy = up("proxy", anywhere, door.url(), "", WriteProxy)
	if err := write(); err != nil {
		t.Errorf("without the control plane: %v", err)
	}
	if proxy.slot.Load() != 0 {
		t.Error("it has a slot from nowhere")
	}
	control = up("control", anywhere, "", "", ControlPlane)
	door.leadTo(control)
	for proxy.slot.Load() == 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it does not become a member")
		}
	}
	// Batchers join the new control plane at their next heartbeat; until then the proxy says when to come again.
	retry()
}

// door is an address that stays, in front of a process that comes and goes: a port that is given up may be somebody else's when it is wanted
// again.
type door struct {
	listener net.Listener
	passing  sync.WaitGroup

	mu struct {
		sync.Mutex
		to    string // host:port; empty: connections are closed
		conns map[net.Conn]struct{}
	}
}

func newDoor(t *testing.T) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{listener: l}
	d.mu.conns = map[net.Conn]struct{}{}
	d.passing.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			d.passing.Go(func() { d.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		d.leadTo(nil)
		d.passing.Wait()
	})
	return d
}

func (d *door) url() string { return "http://" + d.listener.Addr().String() }

// leadTo has new connections go to a process, nil for nowhere, and ends those that there are.
func (d *door) leadTo(a *App) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.to = ""
	if a != nil {
		d.mu.to = strings.TrimPrefix(a.URL(), "http://")
	}
	for c := range d.mu.conns {
		_ = c.Close()
	}
}

// keep remembers a connection; false: the door does not lead there any more.
func (d *door) keep(c net.Conn, to string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.to != to {
		return false
	}
	d.mu.conns[c] = struct{}{}
	return true
}

func (d *door) pass(c net.Conn) {
	d.mu.Lock()
	to := d.mu.to
	d.mu.Unlock()
	defer c.Close()
	if to == "" {
		return
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.mu.conns, c)
		delete(d.mu.conns, server)
	}()
	if !d.keep(c, to) || !d.keep(server, to) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(c, server)
		_ = c.Close()
	})
	_, _ = io.Copy(server, c)
	_ = server.Close()
	back.Wait()
}

// TestProxies: a write proxy counts itself, whether or not the membership shows it.
func TestProxies(t *testing.T) {
	view, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: away{}})
	if err != nil {
		t.Fatal(err)
	}
	a := &App{id: "own", parts: parts{members: view}}
	if n := a.proxies(); n != 1 {
		t.Errorf("%d write proxies without a list", n)
	}
}

// TestLoad: what a process says of its load is the word of its fullest role, within what the control plane takes.
func TestLoad(t *testing.T) {
	for load, want := range map[uint32]uint32{0: 0, 400: 400, 5000: 1000} {
		loads := []func() uint32{func() uint32 { return load / 2 }, func() uint32 { return load }, func() uint32 { return 0 }}
		if got := (&App{parts: parts{loads: loads}}).load(); got != want {
			t.Errorf("load %d is told as %d, want %d", load, got, want)
		}
	}
	if got := (&App{}).load(); got != 0 {
		t.Errorf("a process without such a role has load %d", got)
	}
}
