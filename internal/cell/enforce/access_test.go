package enforce

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/internal/cell/access"
	"scribe/internal/cell/audit"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// trailCell keeps what a trail stores.
type trailCell struct {
	rpc.WriteService
	rpc.ControlService
	entries []audit.Entry
}

func (c *trailCell) CreateCategory(context.Context, *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	return &scribev1.CreateCategoryResponse{}, nil
}

func (c *trailCell) Publish(_ context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	for _, m := range req.GetMessages() {
		var e audit.Entry
		if err := json.Unmarshal(m.GetPayload(), &e); err != nil {
			return nil, err
		}
		c.entries = append(c.entries, e)
	}
	return &scribev1.PublishResponse{}, nil
}

// taker takes what is published, too.
type taker struct{ *writer }

func (taker) Publish(context.Context, *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	return &scribev1.PublishResponse{}, nil
}

// newTrail gives an enforcer a trail, which notes access to data if interval is above 0.
func newTrail(t testing.TB, e *Enforcer, interval time.Duration) {
	t.Helper()
	var err error
	if e.trail, err = audit.New(audit.Config{Now: time.Now, AccessInterval: interval}); err != nil {
		t.Fatal(err)
	}
}

// endTrail ends a trail, and returns what it has of access to data, in words and sorted, and how many other entries it has.
func endTrail(t *testing.T, e *Enforcer) (accesses []string, others int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cell := &trailCell{}
	e.trail.Run(ctx, audit.Deps{Write: cell, Control: cell, Process: "n1"})
	for _, entry := range cell.entries {
		if entry.Outcome != audit.Allowed {
			others++
			continue
		}
		accesses = append(accesses, fmt.Sprintf("%s %s %s: %d, %d open", entry.Principal, entry.Action, entry.Target, entry.Calls, entry.Open))
	}
	slices.Sort(accesses)
	return accesses, others
}

// TestAccessIsCounted: the trail has who was let in to which data, on every way; not what was denied, what members do, and what is only looked at again.
func TestAccessIsCounted(t *testing.T) {
	type act func(*Enforcer, *rights, rpc.Services)
	mine := pointerOf(100, 10)
	member := principal.NewContext(context.Background(), principal.Principal{Kind: principal.Member, Name: "n2"})
	services := rpc.Services{
		Write: taker{&writer{}}, ReadStream: streams{}, ReadProxy: &payloads{},
		Group: &groups{page: 2, list: []*scribev1.Group{{Name: "g1", Category: "a"}, {Name: "g2", Category: "b"}}},
	}
	publish := func(ctx context.Context, category string) act {
		return func(_ *Enforcer, _ *rights, s rpc.Services) {
			_, _ = s.Write.Publish(ctx, &scribev1.PublishRequest{Category: category})
		}
	}
	write := func(ctx context.Context, categories ...string) act {
		return func(_ *Enforcer, _ *rights, s rpc.Services) {
			req := &scribev1.WriteRequest{}
			for _, category := range categories {
				req.Frames = append(req.Frames, frameOf(t, category)...)
			}
			_, _ = s.Write.Write(ctx, req)
		}
	}
	fetch := func(ticketOf string) act {
		return func(e *Enforcer, r *rights, s rpc.Services) {
			ticket := r.set.SignTicket(principal.FromContext(as(ticketOf)), "a", access.Place{Shard: 1 << 32, LSN: 7}, mine, access.Limits{}, e.now())
			_, _ = s.ReadProxy.Fetch(as("alice"), &scribev1.FetchRequest{Category: "a", Pointers: [][]byte{mine}, Tickets: [][]byte{ticket}})
		}
	}
	stream := func(who string) act {
		return func(_ *Enforcer, _ *rights, s rpc.Services) {
			ctx, cancel := context.WithCancel(as(who))
			_, ended := openStream(ctx, s.ReadStream, &scribev1.StreamStart{Category: "a"})
			cancel()
			if err := <-ended; err == nil {
				t.Error("the stream ended by itself")
			}
		}
	}
	grants := []string{"alice write,read,query,group:a", "root write:*"}
	for name, c := range map[string]struct {
		grants []string
		do     act
		want   []string
		denied int
	}{
		"a write":           {grants, publish(as("alice"), "a"), []string{"alice write a: 1, 0 open"}, 0},
		"a denied write":    {grants, publish(as("alice"), "b"), nil, 1},
		"a member's write":  {grants, publish(member, "a"), nil, 0},
		"frames":            {grants, write(as("alice"), "a", "a", "b", "a"), []string{"alice write a: 2, 0 open"}, 1},
		"frames everywhere": {grants, write(as("root"), "a", "a", "b"), []string{"root write a: 1, 0 open", "root write b: 1, 0 open"}, 0},
		"a false trail":     {grants, write(as("root"), "a", audit.Category), []string{"root write a: 1, 0 open"}, 1},
		"a member's frames": {grants, write(member, "a"), nil, 0},
		"in an open cell":   {nil, write(as("carol"), "a"), []string{"carol write a: 1, 0 open"}, 0},
		"a fetch":           {grants, fetch("alice"), []string{"alice read a: 1, 0 open"}, 0},
		"a stolen pointer":  {grants, fetch("root"), nil, 1},
		"a stream":          {grants, stream("alice"), []string{"alice read a: 1, 1 open"}, 0},
		"a denied stream":   {grants, stream("root"), nil, 1},
		"bounds": {grants, func(_ *Enforcer, _ *rights, s rpc.Services) {
			_, _ = s.ReadStream.Bounds(as("alice"), &scribev1.BoundsRequest{Category: "a"})
		}, []string{"alice read a: 1, 0 open"}, 0},
		"groups": {grants, func(_ *Enforcer, _ *rights, s rpc.Services) {
			_, _ = s.Group.JoinGroup(as("alice"), &scribev1.JoinGroupRequest{Group: "g1", Category: "a"})
			_, _ = s.Group.CommitGroup(as("alice"), &scribev1.CommitGroupRequest{Group: "g1"})
			_, _ = s.Group.CommitGroup(as("alice"), &scribev1.CommitGroupRequest{Group: "g2"}) // like one that does not exist: no denial is noted
			_, _ = s.Group.JoinGroup(as("alice"), &scribev1.JoinGroupRequest{Group: "g2", Category: "a"})
			_, _ = s.Group.ListGroups(as("alice"), &scribev1.ListGroupsRequest{})
		}, []string{"alice group a: 2, 0 open"}, 0},
		"groups of an open cell": {nil, func(_ *Enforcer, _ *rights, s rpc.Services) {
			_, _ = s.Group.JoinGroup(as("carol"), &scribev1.JoinGroupRequest{Group: "g1", Category: "a"})
			_, _ = s.Group.CommitGroup(as("carol"), &scribev1.CommitGroupRequest{Group: "g2"})
			_, _ = s.Group.CommitGroup(as("carol"), &scribev1.CommitGroupRequest{Group: "g3"})
			_, _ = s.Group.CommitGroup(member, &scribev1.CommitGroupRequest{Group: "g2"})
		}, []string{"carol group a: 1, 0 open", "carol group b: 1, 0 open"}, 0},
		"a query that goes on": {grants, func(e *Enforcer, r *rights, _ rpc.Services) {
			_, _, release, err := e.BeginRead(as("alice"), access.Query, "a")
			if err != nil {
				return // and the trail has nothing
			}
			for range 3 {
				r.replace(r.Set())
			}
			release()
		}, []string{"alice query a: 1, 1 open"}, 0},
		"administration": {grants, func(e *Enforcer, _ *rights, _ rpc.Services) {
			_ = e.Allow(as("alice"), access.Visible, "a")
		}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e, r := newEnforcer(t, nil, c.grants...)
			newTrail(t, e, time.Hour)
			c.do(e, r, e.Services(services))
			got, others := endTrail(t, e)
			if !slices.Equal(got, c.want) || others != c.denied {
				t.Errorf("the trail has %q and %d others, want %q and %d", got, others, c.want, c.denied)
			}
		})
	}
}

// TestAllowCost: a call that is allowed costs no memory, also where it is counted.
func TestAllowCost(t *testing.T) {
	if testsize.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, interval := range []time.Duration{0, time.Hour} {
		e, _ := newEnforcer(t, nil, "alice write:a.*")
		newTrail(t, e, interval)
		ctx := as("alice")
		if n := testing.AllocsPerRun(1000, func() {
			if err := e.Allow(ctx, access.Write, "a.x"); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("accesses noted every %v: %v allocations", interval, n)
		}
	}
}

// BenchmarkAllow is what a call costs that is allowed: without a trail, with one, and with one that counts it.
//
//	go test -run '^$' -bench '^BenchmarkAllow$' -count 6 ./internal/cell/enforce
func BenchmarkAllow(b *testing.B) {
	for _, trail := range []struct {
		name     string
		interval time.Duration
	}{{"none", -1}, {"denials", 0}, {"accesses", time.Hour}} {
		e, _ := newEnforcer(b, nil, "alice write:a.*")
		if trail.interval >= 0 {
			newTrail(b, e, trail.interval)
		}
		ctx := as("alice")
		allow := func() {
			if err := e.Allow(ctx, access.Write, "a.x"); err != nil {
				b.Error(err)
			}
		}
		b.Run("trail="+trail.name+"/callers=1", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				allow()
			}
		})
		b.Run("trail="+trail.name+"/callers=all", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					allow()
				}
			})
		})
	}
}
