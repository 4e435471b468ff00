package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scribe/batcher"
	"scribe/internal/cell/membership"
	"scribe/internal/role/publish"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, wiring Wiring, change func(*Config)) (*App, error) {
	t.Helper()
	c := DefaultConfig()
	c.Data, c.Listen = filepath.Join(t.TempDir(), "data"), "127.0.0.1:0"
	if change != nil {
		change(&c)
	}
	return Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Wiring: wiring})
}

func stopNow(t *testing.T, a *App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// TestStartStop: nothing is left behind, goroutines included, and the folder can be used again at once.
func TestStartStop(t *testing.T) {
	for _, wiring := range []Wiring{Direct, InMemory} {
		data := t.TempDir()
		for range 3 {
			a, err := start(t, wiring, func(c *Config) { c.Data = data })
			if err != nil {
				t.Fatal(err)
			}
			stopNow(t, a)
			stopNow(t, a) // harmless
		}
	}
}

// TestIdentity: a process keeps its id and its writer slot over restarts, so that it goes on in its logs.
func TestIdentity(t *testing.T) {
	data := t.TempDir()
	var first *App
	for range 2 {
		a, err := start(t, Direct, func(c *Config) { c.Data = data })
		if err != nil {
			t.Fatal(err)
		}
		stopNow(t, a)
		if first == nil {
			first = a
		}
		if a.id != first.id || a.slot.Load() != first.slot.Load() || a.slot.Load() == 0 {
			t.Errorf("id %s with slot %d, then %s with slot %d", first.id, first.slot.Load(), a.id, a.slot.Load())
		}
	}
	if err := os.WriteFile(filepath.Join(data, "id"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := start(t, Direct, func(c *Config) { c.Data = data }); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("an empty id: %v", err)
	}
}

// TestFailedStartReleases: what was started before a failure is ended again.
func TestFailedStartReleases(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if _, err := start(t, Direct, func(c *Config) { c.Data, c.Socket = data, socket }); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Fatalf("a file in the place of the socket: %v", err)
	}
	a, err := start(t, Direct, func(c *Config) { c.Data = data })
	if err != nil {
		t.Fatalf("the folder is not free: %v", err)
	}
	stopNow(t, a)
}

// TestStopDrains: a process that stops leaves the membership before it drains, and is its own way out for what its agent still
// holds.
func TestStopDrains(t *testing.T) {
	for _, wiring := range []Wiring{Direct, InMemory} {
		data := t.TempDir()
		a, err := start(t, wiring, func(c *Config) { c.Data = data })
		if err != nil {
			t.Fatal(err)
		}
		const categories = 200
		var frames []byte
		for i := range categories {
			f, err := publish.Frame(&scribev1.PublishRequest{
				Category: fmt.Sprintf("c%d", i), Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "m"}}},
			}, publish.MaxBytes, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, f...)
		}
		if _, err := a.parts.agent.Write(t.Context(), &scribev1.WriteRequest{Frames: frames, Ack: scribev1.AckLevel_ACK_LEVEL_NONE}); err != nil {
			t.Fatal(err)
		}
		stopNow(t, a)
		if a, err = start(t, wiring, func(c *Config) { c.Data = data }); err != nil {
			t.Fatal(err)
		}
		for i := range categories {
			c, err := a.parts.catalog.Resolve(t.Context(), fmt.Sprintf("c%d", i))
			if err != nil {
				t.Fatal(err)
			}
			states, err := a.parts.log.Shards(t.Context(), c.GetId())
			if err != nil || len(states) != 1 || states[0].NextLSN != 2 {
				t.Errorf("wiring %d, category %d: %+v, %v", wiring, i, states, err)
			}
		}
		stopNow(t, a)
	}
}

// TestRoutesWithoutMembers: without a list of members a process routes to its own batcher, and always gives the same snapshot.
func TestRoutesWithoutMembers(t *testing.T) {
	view, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: away{}})
	if err != nil {
		t.Fatal(err)
	}
	own := &batcher.Batcher{}
	a := &App{id: "own", parts: sharedParts{members: view, batcher: own}}
	batchers := (&batcherRoutes{app: a}).routableBatchers
	first, second := batchers(), batchers()
	if len(first) != 1 || first[0].ID != "own" || first[0].Service != rpc.BatchService(own) || &first[0] != &second[0] {
		t.Errorf("%+v, then %+v", first, second)
	}
	a.parts.batcher = nil
	if got := (&batcherRoutes{app: a}).routableBatchers(); len(got) != 0 {
		t.Errorf("without one: %+v", got)
	}
}

func TestReadiness(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	status := func(path string) int {
		res, err := http.Get(a.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if got := status("/readyz"); got != http.StatusOK {
		t.Errorf("ready: %d", got)
	}
	a.readinessChecks = append(a.readinessChecks, func() error { return errors.New("the disk is gone") })
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("with a fault: %d", got)
	}
	a.readinessChecks = nil
	if got := status("/nothing"); got != http.StatusNotFound {
		t.Errorf("what no role serves: %d", got)
	}
	if got := status("/v1/lines/access"); got != http.StatusMethodNotAllowed {
		t.Errorf("GET where lines are posted: %d", got)
	}
	if got := status("/"); got != http.StatusOK {
		t.Errorf("the console: %d", got)
	}
	if res, err := http.Post(a.URL()+"/", "text/plain", http.NoBody); err != nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("POST to the console: %v, %v", res, err)
	} else {
		_ = res.Body.Close()
	}
	a.ready.Store(false)
	if got := status("/nothing"); got != http.StatusServiceUnavailable {
		t.Errorf("what no role serves yet: %d", got)
	}
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("not ready: %d", got)
	}
	if got := status("/livez"); got != http.StatusOK {
		t.Errorf("alive: %d", got)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestNoConsole: a process that is told to has none.
func TestNoConsole(t *testing.T) {
	a, err := start(t, Direct, func(c *Config) { c.Console = false })
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	for _, path := range []string{"/", "/console/app.js"} {
		res, err := http.Get(a.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s", path, res.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestFailureEndsTheProcess: what can't be repaired in the process is told to whoever runs it, once.
func TestFailureEndsTheProcess(t *testing.T) {
	a, err := start(t, Direct, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopNow(t, a)
	broken, gone := make(chan struct{}), errors.New("gone")
	watchFailure(a, broken, func(struct{}) error { return gone })
	watchFailure(a, broken, func(struct{}) error { return gone })
	close(broken)
	if err := <-a.Failed(); !errors.Is(err, gone) {
		t.Errorf("failed with %v, want %v", err, gone)
	}
}

// TestGatewayDescribesItself: a process says what it offers also while its control plane is away.
func TestGatewayDescribesItself(t *testing.T) {
	g := newControlGateway(away{}, "v", time.Now(), "", []scribev1.Role{scribev1.Role_ROLE_SCRIBED})
	res, err := g.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil || len(res.GetRoles()) != 1 || res.GetVersion() != "v" {
		t.Errorf("%v, %v", res, err)
	}
}

type away struct{ rpc.ControlService }

func (away) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return nil, errors.New("nobody is there")
}

// TestSocket: writers of the same host use the Unix socket; a stale one is replaced, a live one is not.
func TestSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	run := func() (*App, error) { return start(t, Direct, func(c *Config) { c.Socket = socket }) }
	a, err := run()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "another process serves there") {
		t.Errorf("a second server on the socket: %v", err)
	}
	transport := rpc.NewTransport(nil)
	_, err = rpc.NewWriteClient(transport, "unix:"+socket).Publish(t.Context(), &scribev1.PublishRequest{
		Category: "hosts", Messages: []*scribev1.PublishMessage{{Content: &scribev1.PublishMessage_Text{Text: "hello"}}},
	})
	if err != nil {
		t.Errorf("over the socket: %v", err)
	}
	transport.Close()
	stopNow(t, a)
}
