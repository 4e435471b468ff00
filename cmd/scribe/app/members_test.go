package app

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"scribe/internal/cell/membership"
	"scribe/internal/testkit/loopback"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestStartWithoutControlPlane: a write proxy that starts while the control plane is away takes writes with the categories and the
// batchers that it knew last, and becomes a member when the control plane is back.
func TestStartWithoutControlPlane(t *testing.T) {
	dir := t.TempDir()
	// Short for the test's sake: without the control plane a process waits as long before it serves. A member that a busy machine keeps
	// from renewing for longer is none for a moment.
	short := 2 * time.Second
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
	address, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	control := up("control", address, "", "", ControlPlane)
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
	for err := write(); err != nil; err = write() {
		if !retry.Retryable(err) {
			t.Fatal(err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
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
	// Batchers join the new control plane at their next heartbeat. Until then it names none, and those that were there are used.
	for range 20 {
		if err := write(); err != nil {
			t.Fatalf("when the control plane is back: %v", err)
		}
	}
}

// lists is a control plane that sends the lists of members that a test gives it.
type lists chan []*scribev1.Member

func (l lists) WatchMembers(ctx context.Context, _ *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	for {
		select {
		case members := <-l:
			if err := send(&scribev1.WatchMembersResponse{Members: members}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestStopWithoutControlPlane: a process whose control plane was stopped before it, or answers nothing, still stops in good order, with time
// left for what it holds.
func TestStopWithoutControlPlane(t *testing.T) {
	for name, silent := range map[string]bool{"stopped": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			address, release, err := loopback.Reserve()
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			control, err := start(t, Direct, func(c *Config) { c.Roles, c.Listen = []Role{ControlPlane}, address })
			if err != nil {
				t.Fatal(err)
			}
			logs, err := start(t, Direct, func(c *Config) { c.Roles, c.Control = []Role{Metalog}, "http://"+address })
			if err != nil {
				t.Fatal(err)
			}
			if logs.slot.Load() == 0 {
				t.Error("it is no member")
			}
			stopNow(t, control)
			if silent {
				l, err := net.Listen("tcp", address) // connections stay in its queue
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = l.Close() }()
			}
			stopNow(t, logs)
		})
	}
}

// TestRoutesWithoutBatchers: a list that names no batcher leaves those of the one before, and one that names others replaces them.
func TestRoutesWithoutBatchers(t *testing.T) {
	source := lists(make(chan []*scribev1.Member))
	view, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: source})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- view.Run(t.Context()) }()
	defer func() {
		if err := errors.Join(view.Close(context.Background()), <-ended); err != nil {
			t.Error(err)
		}
	}()
	a := &App{id: "own", parts: sharedParts{members: view}, transport: rpc.NewTransport(nil)}
	defer a.transport.Close()
	r := &batcherRoutes{app: a}
	if n := len(r.routableBatchers()); n != 0 {
		t.Errorf("%d batchers from nowhere", n)
	}
	told := func(ids ...string) {
		_, changed := view.Watch(scribev1.Role_ROLE_BATCHER)
		members := []*scribev1.Member{{Id: "proxy", Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, JoinedAt: time.Now().UnixNano()}}
		for _, id := range ids {
			members = append(members, &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://" + id})
		}
		source <- members
		<-changed
	}
	for _, step := range []struct{ told, want []string }{
		{nil, nil},
		{[]string{"a", "b"}, []string{"a", "b"}},
		{nil, []string{"a", "b"}},
		{nil, []string{"a", "b"}},
		{[]string{"c"}, []string{"c"}},
		{nil, []string{"c"}},
	} {
		told(step.told...)
		for range 2 {
			var got []string
			for _, b := range r.routableBatchers() {
				got = append(got, b.ID)
			}
			if !slices.Equal(got, step.want) {
				t.Errorf("%v were told of, and %v are used, want %v", step.told, got, step.want)
			}
		}
	}
}

// TestProxies: a write proxy counts itself, whether or not the membership shows it.
func TestProxies(t *testing.T) {
	view, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: away{}})
	if err != nil {
		t.Fatal(err)
	}
	a := &App{id: "own", parts: sharedParts{members: view}}
	if n := a.countSharers(scribev1.Role_ROLE_WRITEPROXY); n != 1 {
		t.Errorf("%d write proxies without a list", n)
	}
}

// TestLoads: heartbeats tell the load of each role, within what the control plane takes, and smooth what is not urgent.
func TestLoads(t *testing.T) {
	load := uint32(400)
	a := &App{}
	a.advertiseLoad(scribev1.Role_ROLE_BATCHER, func() uint32 { return load })
	a.advertiseLoad(scribev1.Role_ROLE_READPROXY, func() uint32 { return load / 2 })
	for _, want := range []struct{ load, batcher, readProxy uint32 }{{400, 400, 200}, {0, 200, 100}, {5000, 1000, 1000}} {
		load = want.load
		got := a.currentLoads()
		if len(got) != 2 || got[0].GetRole() != scribev1.Role_ROLE_BATCHER || got[0].GetLoad() != want.batcher || got[1].GetLoad() != want.readProxy {
			t.Errorf("load %d is told as %v, want %d and %d", load, got, want.batcher, want.readProxy)
		}
	}
	if got := (&App{}).currentLoads(); len(got) != 0 {
		t.Errorf("a process without such a role tells %v", got)
	}
}

// sentLists is lists with the time at which each was sent.
type sentLists chan *scribev1.WatchMembersResponse

func (l sentLists) WatchMembers(ctx context.Context, _ *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	for {
		select {
		case list := <-l:
			if err := send(list); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestJoinedAgain: a batcher that joins again, since its lease had expired, has not started again; one of another incarnation has.
func TestJoinedAgain(t *testing.T) {
	source := make(sentLists)
	view, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: source})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- view.Run(t.Context()) }()
	defer func() {
		if err := errors.Join(view.Close(context.Background()), <-ended); err != nil {
			t.Error(err)
		}
	}()
	a := &App{id: "own", parts: sharedParts{members: view}, transport: rpc.NewTransport(nil)}
	defer a.transport.Close()
	r := &batcherRoutes{app: a}
	startOf := func(incarnation string, joinedAt int64) int64 {
		_, changed := view.Watch(scribev1.Role_ROLE_BATCHER)
		source <- &scribev1.WatchMembersResponse{SentAt: 9e15, Members: []*scribev1.Member{
			{Id: "b", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://b", Incarnation: incarnation, JoinedAt: joinedAt},
		}}
		<-changed
		return r.routableBatchers()[0].Start
	}
	first, again, other := startOf("x", 5e15), startOf("x", 8e15), startOf("y", 8e15)
	if first == 0 || again != first || other == first {
		t.Errorf("starts %d, %d and %d", first, again, other)
	}
}
