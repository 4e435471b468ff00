package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/cell/catalog"
	"scribe/internal/cell/membership"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv/memkv"
)

// TestRolesOverRestart runs a role's catalog and membership against a control plane that is restarted: the role sees what it
// created, keeps its slot, and goes on meanwhile.
func TestRolesOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		plane := &switchboard{}
		plane.use(c)

		categories, err := catalog.New(catalog.DefaultViewConfig(), catalog.ViewDeps{Source: plane})
		if err != nil {
			t.Fatal(err)
		}
		members, err := membership.NewView(membership.DefaultViewConfig(), membership.ViewDeps{Source: plane})
		if err != nil {
			t.Fatal(err)
		}
		var views sync.WaitGroup
		views.Go(func() { _ = categories.Run(t.Context()) })
		views.Go(func() { _ = members.Run(t.Context()) })
		lease, err := membership.Join(t.Context(), plane, membership.LeaseConfig{
			Member: &scribev1.Member{Id: "b", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://b:1"}, TTL: 3 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		<-categories.Ready()
		<-members.Ready()
		for i := range 50 { // each is found at once, whether the watch was faster or not
			cat := create(t, c, fmt.Sprintf("c%d", i))
			if got, err := categories.Resolve(t.Context(), cat.GetName()); err != nil || got.GetId() != cat.GetId() {
				t.Fatalf("%v, %v", got, err)
			}
		}
		synctest.Wait()
		_, err = categories.Resolve(t.Context(), "c7x")
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY, "did you mean")

		advance(time.Second) // the views have come up to date
		plane.use(nil)
		stop(t, c)
		advance(10 * time.Second)
		if got, ok := categories.Lookup("c7"); !ok || got.GetId() != 8 || categories.InSync() {
			t.Errorf("during the outage: %v", got)
		}
		if s := lease.State(); s.Live || s.Slot != 1 {
			t.Errorf("during the outage: %+v", s)
		}
		if len(members.Members(scribev1.Role_ROLE_BATCHER)) != 1 {
			t.Error("the members are gone with the control plane")
		}

		c = run(t, store, nil)
		other := join(t, c, "other", time.Minute) // before b could come back
		plane.use(c)
		create(t, c, "later")
		advance(10 * time.Second)
		if s := lease.State(); !s.Live || s.Slot != 1 || other.GetSlot() == 1 {
			t.Errorf("after the outage: %+v, other has slot %d", s, other.GetSlot())
		}
		if _, ok := categories.Lookup("later"); !ok || !categories.InSync() || categories.Len() != 51 {
			t.Errorf("after the outage: %v", categories)
		}
		if got := showMembers(members.Members(scribev1.Role_ROLE_BATCHER)); got != "b/1/0 other/2/0" {
			t.Errorf("after the outage: %s", got)
		}
		if err := errors.Join(lease.Close(t.Context()), categories.Close(t.Context()), members.Close(t.Context())); err != nil {
			t.Error(err)
		}
		views.Wait()
		wantMembers(t, c, "other/2/0")
		stop(t, c)
	})
}

// switchboard passes calls on to the control plane that is there.
type switchboard struct {
	mu struct {
		sync.Mutex
		plane *ControlPlane
	}
}

func (s *switchboard) use(c *ControlPlane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.plane = c
}

func (s *switchboard) get() (*ControlPlane, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.plane == nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "connection refused")
	}
	return s.mu.plane, nil
}

func (s *switchboard) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error {
	c, err := s.get()
	if err != nil {
		return err
	}
	return c.WatchCategories(ctx, req, send)
}

func (s *switchboard) GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	c, err := s.get()
	if err != nil {
		return nil, err
	}
	return c.GetCategory(ctx, req)
}

func (s *switchboard) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	c, err := s.get()
	if err != nil {
		return err
	}
	return c.WatchMembers(ctx, req, send)
}

func (s *switchboard) Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error) {
	c, err := s.get()
	if err != nil {
		return nil, err
	}
	return c.Join(ctx, req)
}

func (s *switchboard) Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	c, err := s.get()
	if err != nil {
		return nil, err
	}
	return c.Heartbeat(ctx, req)
}

func (s *switchboard) Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	c, err := s.get()
	if err != nil {
		return nil, err
	}
	return c.Leave(ctx, req)
}

// TestCrash crashes the store under creates, deletes and joins: what was acknowledged is there, and no id or slot that was given
// out is given to another.
func TestCrash(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { crash(t, seed) })
	}
}

func crash(t *testing.T, seed uint64) {
	fs := vfs.NewCrashableMem()
	store := openPebble(t, fs)
	c := run(t, store, func(c *Config, _ *Deps) { c.IDBlock = 8 })
	var mu sync.Mutex
	acked := map[string]uint32{}
	slots := map[string]uint32{}
	enough := make(chan struct{})
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	total := 30 + rand.New(rand.NewPCG(seed, 1)).IntN(60)
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("w%d.%d", w, i)
				resp, err := c.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: name}})
				if err != nil {
					return
				}
				member, err := c.Join(ctx, &scribev1.JoinRequest{Member: &scribev1.Member{Id: name, Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
				if err != nil {
					return
				}
				mu.Lock()
				acked[name] = resp.GetCategory().GetId()
				slots[name] = member.GetMember().GetSlot()
				if len(acked) == total {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	<-enough
	mu.Lock()
	wantCategories, wantSlots := make(map[string]uint32), make(map[string]uint32)
	for name := range acked {
		wantCategories[name], wantSlots[name] = acked[name], slots[name]
	}
	mu.Unlock()
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 2))})
	cancel()
	wg.Wait()
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	store = openPebble(t, clone)
	c = run(t, store, nil)
	used := map[uint32]bool{}
	for name, id := range wantCategories {
		resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: name})
		if err != nil || resp.GetCategory().GetId() != id {
			t.Errorf("category %s was %d: %v, %v", name, id, resp, err)
		}
		used[id] = true
	}
	if cat := create(t, c, "after"); used[cat.GetId()] {
		t.Errorf("id %d was given out before the crash", cat.GetId())
	}
	members, err := c.ListMembers(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := map[uint32]bool{}
	for _, m := range members.GetMembers() {
		if want, ok := wantSlots[m.GetId()]; taken[m.GetSlot()] || (ok && want != m.GetSlot()) {
			t.Errorf("member %v, its slot was %d", m, want)
		}
		taken[m.GetSlot()] = true
		delete(wantSlots, m.GetId())
	}
	if len(wantSlots) > 0 {
		t.Errorf("members %v are forgotten", wantSlots)
	}
	if m := join(t, c, "after", time.Minute); taken[m.GetSlot()] {
		t.Errorf("slot %d is another member's", m.GetSlot())
	}
	stop(t, c)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
