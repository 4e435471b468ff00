package app

import (
	"path/filepath"
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
	short := units.Duration(300 * time.Millisecond)
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
	control := up("control", anywhere, "", "", ControlPlane)
	logs := up("logs", anywhere, control.URL(), "", Metalog)
	batch := up("batch", anywhere, control.URL(), logs.URL(), Batcher)
	proxy := up("proxy", anywhere, control.URL(), "", WriteProxy)
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
	if err := write(); err != nil {
		t.Fatal(err)
	}
	address := control.URL()[len("http://"):]
	stopNow(t, proxy)
	stopNow(t, control)
	proxy = up("proxy", anywhere, control.URL(), "", WriteProxy)
	if err := write(); err != nil {
		t.Errorf("without the control plane: %v", err)
	}
	if proxy.slot.Load() != 0 {
		t.Error("it has a slot from nowhere")
	}
	control = up("control", address, "", "", ControlPlane)
	for proxy.slot.Load() == 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it does not become a member")
		}
	}
	// Batchers join the new control plane at their next heartbeat; until then the proxy says when to come again.
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
