package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// advance lets time pass in a bubble, and everything happen that is due.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func join(t *testing.T, c *ControlPlane, id string, ttl time.Duration, roles ...scribev1.Role) *scribev1.Member {
	t.Helper()
	if roles == nil {
		roles = []scribev1.Role{scribev1.Role_ROLE_BATCHER}
	}
	resp, err := c.Join(t.Context(), &scribev1.JoinRequest{
		Member: &scribev1.Member{Id: id, Roles: roles, Url: "http://" + id + ":7420", Version: "v1"}, Ttl: durationpb.New(ttl),
	})
	if err != nil {
		t.Fatal(err)
	}
	if resp.GetTtl().AsDuration() != ttl {
		t.Errorf("a TTL of %v, want %v", resp.GetTtl().AsDuration(), ttl)
	}
	return resp.GetMember()
}

func heartbeat(t *testing.T, c *ControlPlane, id string, load uint32) error {
	t.Helper()
	_, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: id, Load: load})
	return err
}

func showMembers(members []*scribev1.Member) string {
	var out []string
	for _, m := range members {
		out = append(out, fmt.Sprintf("%s/%d/%d", m.GetId(), m.GetSlot(), m.GetLoad()))
	}
	return strings.Join(out, " ")
}

func wantMembers(t *testing.T, c *ControlPlane, want string) {
	t.Helper()
	resp, err := c.ListMembers(t.Context(), &scribev1.ListMembersRequest{})
	if got := showMembers(resp.GetMembers()); err != nil || got != want {
		t.Fatalf("members %q, %v; want %q", got, err, want)
	}
}

// run starts a control plane for a test inside a bubble, where it has to be stopped before the end of the bubble.
func run(t *testing.T, store kv.Store, change func(*Config, *Deps)) *ControlPlane {
	t.Helper()
	cfg, deps := config.Defaults[Config](), Deps{Store: store}
	if change != nil {
		change(&cfg, &deps)
	}
	c, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMembersKnowRemovedLogs: a control plane that begins anew knows which members know removed logs: nothing is removed while one does not.
func TestMembersKnowRemovedLogs(t *testing.T) {
	store := newStore(t)
	c := run(t, store, nil)
	for id, knows := range map[string]bool{"older": false, "newer": true} {
		if _, err := c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://" + id + ":7420", RemovedLogs: knows}, Ttl: durationpb.New(maxTTL)}); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, c)
	c = run(t, store, nil)
	defer stop(t, c)
	res, err := c.ListMembers(t.Context(), &scribev1.ListMembersRequest{})
	if err != nil || len(res.GetMembers()) != 2 {
		t.Fatalf("%v, %v", res.GetMembers(), err)
	}
	for _, m := range res.GetMembers() {
		if m.GetRemovedLogs() != (m.GetId() == "newer") {
			t.Errorf("%s is said to know removed logs: %v", m.GetId(), m.GetRemovedLogs())
		}
	}
}

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), nil)
		defer stop(t, c)
		a := join(t, c, "a", 10*time.Second)
		b := join(t, c, "b", time.Minute, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_READSTREAM)
		if a.GetSlot() != 1 || b.GetSlot() != 2 || a.GetJoinedAt() != time.Now().UnixMicro() {
			t.Fatalf("%v %v", a, b)
		}
		resp, err := c.ListMembers(t.Context(), &scribev1.ListMembersRequest{Role: scribev1.Role_ROLE_READSTREAM})
		if err != nil || showMembers(resp.GetMembers()) != "b/2/0" {
			t.Errorf("%v, %v", resp, err)
		}
		// Heartbeats keep a.
		for range 5 {
			advance(9 * time.Second)
			if err := heartbeat(t, c, "a", 5); err != nil {
				t.Fatal(err)
			}
		}
		wantMembers(t, c, "a/1/5 b/2/0")
		advance(10*time.Second - 1)
		wantMembers(t, c, "a/1/5 b/2/0")
		advance(1)
		wantMembers(t, c, "b/2/0")
		wantReason(t, heartbeat(t, c, "a", 0), scribev1.Reason_REASON_LEASE_EXPIRED)
		wantReason(t, heartbeat(t, c, "b", 1001), scribev1.Reason_REASON_INVALID)
		if m := join(t, c, "c", time.Minute); m.GetSlot() != 3 {
			t.Errorf("c has slot %d while others are free", m.GetSlot())
		}
		if m := join(t, c, "a", time.Minute); m.GetSlot() != 1 {
			t.Errorf("a comes back to slot %d", m.GetSlot())
		}
		for range 2 { // leaving twice is harmless
			if _, err := c.Leave(t.Context(), &scribev1.LeaveRequest{Id: "b"}); err != nil {
				t.Fatal(err)
			}
		}
		if m := join(t, c, "d", time.Minute); m.GetSlot() != 2 {
			t.Errorf("d has slot %d, though b gave 2 back", m.GetSlot())
		}
		wantMembers(t, c, "a/1/0 c/3/0 d/2/0")
	})
}

// TestJoinLog: the log calls roles what --roles does.
func TestJoinLog(t *testing.T) {
	var log bytes.Buffer
	c := start(t, memkv.New(), func(_ *Config, d *Deps) { d.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	join(t, c, "a", time.Minute, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_COLLECTOR, scribev1.Role_ROLE_GATEWAY)
	if want := `msg="member joined" member=a slot=1 roles="[readproxy retention sqlserver]"`; !strings.Contains(log.String(), want) {
		t.Errorf("%s lacks %s", log.String(), want)
	}
}

func TestSlotsRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), func(c *Config, _ *Deps) { c.MaxSlot = 2 })
		defer stop(t, c)
		join(t, c, "a", 10*time.Second)
		join(t, c, "b", time.Minute)
		refused := func(after time.Duration) {
			t.Helper()
			_, err := c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: "c", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
			wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
			if got := retryAfter(err); got != after {
				t.Errorf("%v says to retry after %v, want %v", err, got, after)
			}
		}
		refused(20 * time.Second)
		advance(11 * time.Second)
		refused(9 * time.Second)
		advance(9 * time.Second)
		if m := join(t, c, "c", time.Minute); m.GetSlot() != 1 {
			t.Errorf("c has slot %d", m.GetSlot())
		}
	})
}

// TestRestart: a control plane that starts again knows the members, lets them go on, and keeps the slots of the others.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		join(t, c, "expired", time.Second)
		advance(1500 * time.Millisecond)
		a := join(t, c, "a", 10*time.Second, scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_WRITEPROXY)
		join(t, c, "left", time.Minute)
		join(t, c, "b", time.Minute)
		if _, err := c.Leave(t.Context(), &scribev1.LeaveRequest{Id: "left"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop(t, c)
		advance(100 * time.Millisecond)

		c = run(t, store, func(c *Config, _ *Deps) { c.MaxSlot = 4 })
		wantMembers(t, c, "a/2/0 b/4/0")
		resp, err := c.ListMembers(t.Context(), &scribev1.ListMembersRequest{Role: scribev1.Role_ROLE_WRITEPROXY})
		if err != nil || len(resp.GetMembers()) != 1 || resp.GetMembers()[0].GetUrl() != a.GetUrl() ||
			resp.GetMembers()[0].GetJoinedAt() != a.GetJoinedAt() || resp.GetMembers()[0].GetVersion() != "v1" {
			t.Errorf("%v, %v; want %v", resp, err, a)
		}
		if err := heartbeat(t, c, "a", 3); err != nil {
			t.Errorf("a member of before: %v", err)
		}
		if m := join(t, c, "new", time.Minute); m.GetSlot() != 3 {
			t.Errorf("new has slot %d, want the one that was given back", m.GetSlot())
		}
		// Slot 1 is still kept for the expired member: 1.5 s after it joined for 1 s, until 2 s.
		_, err = c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: "other", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
		wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
		advance(500 * time.Millisecond)
		if m := join(t, c, "other", time.Minute); m.GetSlot() != 1 {
			t.Errorf("other has slot %d", m.GetSlot())
		}
		advance(10 * time.Second) // a's heartbeat was 400 ms ago before
		wantMembers(t, c, "b/4/0 new/3/0 other/1/0")
		stop(t, c)
	})
}

// TestJoinNotWritten: a slot whose grant could not be written down is kept for the member, and nobody is a member.
func TestJoinNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Store: memkv.New(), prefix: slotPrefix, applied: true}
		c := run(t, store, nil)
		store.failing.Store(true)
		_, err := c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: "a", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		store.failing.Store(false)
		wantMembers(t, c, "")
		if m := join(t, c, "b", time.Minute); m.GetSlot() != 2 {
			t.Errorf("b has slot %d", m.GetSlot())
		}
		if m := join(t, c, "a", time.Minute); m.GetSlot() != 1 {
			t.Errorf("a has slot %d", m.GetSlot())
		}
		store.failing.Store(true)
		_, err = c.Leave(t.Context(), &scribev1.LeaveRequest{Id: "a"})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		wantMembers(t, c, "a/1/0 b/2/0")
		store.failing.Store(false)
		stop(t, c)
	})
}

// TestDamagedSlot: a value that cannot be read does not keep the control plane from starting.
func TestDamagedSlot(t *testing.T) {
	store := newStore(t)
	if _, err := store.Commit(t.Context(), kv.Put(slotKey(1), []byte("{")), kv.Put(slotPrefix+"x", nil)); err != nil {
		t.Fatal(err)
	}
	c := start(t, store, nil)
	if m := join(t, c, "a", time.Minute); m.GetSlot() != 1 {
		t.Errorf("slot %d", m.GetSlot())
	}
}

// watchMembersOf collects the lists that a watch sends, with when.
func watchMembersOf(ctx context.Context, c *ControlPlane, heartbeat time.Duration) (<-chan string, <-chan error) {
	lists, done := make(chan string, 1000), make(chan error, 1)
	begin := time.Now()
	go func() {
		done <- c.WatchMembers(ctx, &scribev1.WatchMembersRequest{Heartbeat: durationpb.New(heartbeat)}, func(msg *scribev1.WatchMembersResponse) error {
			lists <- fmt.Sprintf("%v: %s", time.Since(begin), showMembers(msg.GetMembers()))
			return nil
		})
	}()
	return lists, done
}

func wantLists(t *testing.T, lists <-chan string, want ...string) {
	t.Helper()
	synctest.Wait()
	for _, w := range want {
		select {
		case got := <-lists:
			if got != w {
				t.Fatalf("the watch sends %q, want %q", got, w)
			}
		default:
			t.Fatalf("the watch sends nothing, want %q", w)
		}
	}
	select {
	case got := <-lists:
		t.Fatalf("the watch sends %q", got)
	default:
	}
}

func TestWatchMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		lists, done := watchMembersOf(ctx, c, 5*time.Second)
		wantLists(t, lists, "0s: ")
		// Changes right after each other go into one message.
		join(t, c, "a", time.Minute)
		join(t, c, "b", 2*time.Second)
		wantLists(t, lists)
		advance(50 * time.Millisecond)
		wantLists(t, lists, "50ms: a/1/0 b/2/0")
		advance(50 * time.Millisecond)
		join(t, c, "c", time.Minute)
		wantLists(t, lists, "100ms: a/1/0 b/2/0 c/3/0")
		// An expiry is told when it happens.
		advance(1900 * time.Millisecond)
		wantLists(t, lists, "2s: a/1/0 c/3/0")
		// Clear changes of loads are told at most once a second.
		advance(30 * time.Millisecond)
		for i := range uint32(20) {
			if err := heartbeat(t, c, "a", 100+45*i); err != nil {
				t.Fatal(err)
			}
			advance(70 * time.Millisecond)
		}
		advance(time.Second)
		wantLists(t, lists, "2.05s: a/1/100 c/3/0", "3.03s: a/1/730 c/3/0", "4.03s: a/1/955 c/3/0")
		// Silence is filled with the list, which has the slight changes, too.
		if err := heartbeat(t, c, "a", 956); err != nil {
			t.Fatal(err)
		}
		advance(5 * time.Second)
		wantLists(t, lists, "9.03s: a/1/956 c/3/0")
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		stop(t, c)
	})
}

// TestWatchMembersSharesNothing: what a watch got is its own.
func TestWatchMembersSharesNothing(t *testing.T) {
	c := start(t, newStore(t), nil)
	join(t, c, "a", time.Minute)
	for range 2 {
		err := c.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(msg *scribev1.WatchMembersResponse) error {
			if msg.GetMembers()[0].GetId() != "a" {
				t.Error("a watch sees what another one did to its members")
			}
			msg.Members[0].Id = "x"
			return errLost
		})
		if !errors.Is(err, errLost) {
			t.Fatal(err)
		}
	}
	wantMembers(t, c, "a/1/0")
}

func retryAfter(err error) time.Duration { return rpc.Info(err).GetRetryAfter().AsDuration() }

// TestLoadsOfRoles: the loads of a member's roles are listed as its last heartbeat told them, bounded, with the time of the list.
func TestLoadsOfRoles(t *testing.T) {
	c := start(t, newStore(t), nil)
	join(t, c, "a", time.Minute)
	loads := func(n int, load uint32) (list []*scribev1.RoleLoad) {
		for range n {
			list = append(list, &scribev1.RoleLoad{Role: scribev1.Role_ROLE_READPROXY, Load: load})
		}
		return list
	}
	for _, bad := range [][]*scribev1.RoleLoad{loads(maxMemberRoles+1, 1), loads(1, maxLoad+1)} {
		_, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "a", Loads: bad})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID || !strings.Contains(err.Error(), "loads") {
			t.Errorf("%d loads: %v", len(bad), err)
		}
		_, err = c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: "b", Roles: []scribev1.Role{scribev1.Role_ROLE_READPROXY}, Loads: bad}})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("join with %d loads: %v", len(bad), err)
		}
	}
	if _, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "a", Load: 600, Loads: loads(1, 600)}); err != nil {
		t.Fatal(err)
	}
	st, err := c.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	m := st.GetMembers()[0]
	if load, known := m.LoadOf(scribev1.Role_ROLE_READPROXY); !known || load != 600 || st.GetMembersAt() < m.GetJoinedAt() {
		t.Errorf("%v at %d", m, st.GetMembersAt())
	}
	err = c.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(msg *scribev1.WatchMembersResponse) error {
		if msg.GetSentAt() < msg.GetMembers()[0].GetJoinedAt() {
			t.Errorf("sent at %d, it joined at %d", msg.GetSentAt(), msg.GetMembers()[0].GetJoinedAt())
		}
		return errLost
	})
	if !errors.Is(err, errLost) {
		t.Fatal(err)
	}
}
