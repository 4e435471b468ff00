package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// membersOf is a control plane that knows members.
type membersOf struct {
	rpc.ControlService
	members []*scribev1.Member
}

func (c membersOf) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return &scribev1.GetStatusResponse{Members: c.members}, nil
}

// stoppingApp is a process of two roles whose parts write down what they do.
func stoppingApp(others ...scribev1.Role) (a *App, events *[]string) {
	members := []*scribev1.Member{{Id: "own", Roles: []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE, scribev1.Role_ROLE_METALOG}}}
	if len(others) > 0 {
		members = append(members, &scribev1.Member{Id: "other", Roles: others})
	}
	a = &App{log: slog.New(slog.DiscardHandler), ended: make(chan struct{})}
	a.cfg.Roles = []Role{ControlPlane, Metalog}
	a.parts.gateway = newControlGateway(membersOf{members: members}, "v", time.Now(), "own", a.protoRoles())
	events = &[]string{}
	note := func(what string, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			st, _ := a.parts.gateway.GetStatus(ctx, &scribev1.GetStatusRequest{})
			if a.ready.Load() || len(st.GetRoles()) == 2 {
				what += ", still offered"
			}
			*events = append(*events, what)
			return err
		}
	}
	a.onStop("etcd", note("end etcd", nil))
	a.onStandAside("etcd", scribev1.Role_ROLE_METALOG, note("hand over etcd", nil))
	a.onStandAside("control plane", scribev1.Role_ROLE_CONTROLPLANE, note("hand over control", errors.New("nobody takes over")))
	a.onStandAside("metalog", scribev1.Role_ROLE_METALOG, note("hand over metalog", nil))
	a.onStop("batcher", note("drain", nil))
	a.ready.Store(true)
	return a, events
}

// A process that stops says so, hands over what it leads, to those who can take over, and drains only then.
func TestStandAside(t *testing.T) {
	for _, c := range []struct {
		name   string
		others []scribev1.Role
		want   []string
	}{
		{
			"all roles elsewhere",
			[]scribev1.Role{scribev1.Role_ROLE_METALOG, scribev1.Role_ROLE_CONTROLPLANE},
			[]string{"hand over metalog", "hand over control", "hand over etcd", "drain", "end etcd"},
		},
		{"one role elsewhere", []scribev1.Role{scribev1.Role_ROLE_METALOG}, []string{"hand over metalog", "hand over etcd", "drain", "end etcd"}},
		{"alone", nil, []string{"drain, still offered", "end etcd, still offered"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, events := stoppingApp(c.others...)
			if err := a.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(*events, c.want) {
				t.Errorf("it did %q, want %q", *events, c.want)
			}
		})
	}
	t.Run("never ready", func(t *testing.T) {
		a, events := stoppingApp(scribev1.Role_ROLE_METALOG, scribev1.Role_ROLE_CONTROLPLANE)
		a.ready.Store(false)
		if err := a.Stop(t.Context()); err != nil || len(*events) != 2 {
			t.Errorf("it did %q, %v", *events, err)
		}
	})
}

// TestStopBesideADrain: what ends after a drain that takes all of the time ends in an orderly way, and the log says which part it was.
func TestStopBesideADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := &App{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})), ended: make(chan struct{})}
		a.onStop("member list", func(ctx context.Context) error {
			select {
			case <-time.After(100 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		a.shared = len(a.stops)
		a.onStop("batcher", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.New("a frame is left")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err == nil || err.Error() != "stop batcher: a frame is left" {
			t.Errorf("it stopped with %v", err)
		}
		if !strings.Contains(log.String(), "part=batcher took=28s") || strings.Contains(log.String(), "part=\"member list\"") {
			t.Errorf("the log says %s", &log)
		}
	})
}

// What a process that stops goes on offering is what nobody else does.
func TestLastRoles(t *testing.T) {
	agent, proxy, batcher := scribev1.Role_ROLE_SCRIBED, scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_BATCHER
	others := []*scribev1.Member{{Id: "other", Roles: []scribev1.Role{agent, proxy}}}
	for _, c := range []struct{ has, want []scribev1.Role }{
		{[]scribev1.Role{agent, proxy, batcher}, []scribev1.Role{batcher}},
		{[]scribev1.Role{agent}, []scribev1.Role{agent}},
		{[]scribev1.Role{proxy}, nil},
	} {
		g := newControlGateway(membersOf{members: append(others, &scribev1.Member{Id: "own", Roles: c.has})}, "v", time.Now(), "own", c.has)
		if n := len(g.announceStop(t.Context())); n != 1 {
			t.Errorf("%d other members", n)
		}
		st, err := g.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
		if err != nil || !slices.Equal(st.GetRoles(), c.want) || len(st.GetMembers()) != 1 {
			t.Errorf("of %v it offers %v with %d members, %v", c.has, st.GetRoles(), len(st.GetMembers()), err)
		}
	}
}
