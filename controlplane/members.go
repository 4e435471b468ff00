package controlplane

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/base/lifecycle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// memberDriver drives the registry: it serialises writes to the store, wakes watches, and shares lists.
type memberDriver struct {
	// turn is held by the one call that reserves a slot and stores it. Writes about a slot therefore have the order in which the
	// registry changed.
	turn *semaphore.Weighted
	// wake tells the lease watcher to compare the deadlines with the time again.
	wake lifecycle.WakeChannel

	mu struct {
		sync.Mutex
		registry *memberRegistry
		// shared is the newest list that watches send, made at a time; nil when it has to be made again.
		shared []*scribev1.Member
		made   time.Time
		// changed is closed and replaced when watches have something to send.
		changed chan struct{}
		// loads says that a load has clearly changed since the watches were woken, slight that one has changed since the list was made.
		loads, slight bool
	}
}

func newMembers(maxSlot uint32) *memberDriver {
	m := &memberDriver{turn: semaphore.NewWeighted(1), wake: lifecycle.NewWakeChannel()}
	m.mu.registry = newRegistry(maxSlot)
	m.mu.changed = make(chan struct{})
	return m
}

// replaceRegistry replaces the registry when this instance begins to lead, or does not lead any more.
func (m *memberDriver) replaceRegistry(r *memberRegistry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.registry = r
	m.wakeWatches()
}

// extendLeases lets every lease last for one TTL at least.
func (m *memberDriver) extendLeases(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.registry.extendLeases(now)
}

func (m *memberDriver) countMembers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.mu.registry.leases)
}

// wakeWatches wakes the watches. m.mu is held.
func (m *memberDriver) wakeWatches() {
	m.mu.shared, m.mu.loads = nil, false
	m.mu.registry.markAnnounced()
	close(m.mu.changed)
	m.mu.changed = make(chan struct{})
}

// slightInterval is the least age of a list that is made again only since loads have changed slightly.
const slightInterval = time.Second

// watchList returns the newest list, which is shared, and the channel that announces the next one.
func (m *memberDriver) watchList() ([]*scribev1.Member, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); m.mu.shared == nil || m.mu.slight && now.Sub(m.mu.made) >= slightInterval {
		m.mu.shared, m.mu.made, m.mu.slight = m.mu.registry.listMembers(), now, false
	}
	return m.mu.shared, m.mu.changed
}

// listMembers returns copies of the members that offer a role, or of all members if role is unspecified.
func (m *memberDriver) listMembers(role scribev1.Role) []*scribev1.Member {
	m.mu.Lock()
	list := m.mu.registry.listMembers()
	m.mu.Unlock()
	return cloneMembers(slices.DeleteFunc(list, func(m *scribev1.Member) bool {
		return role != scribev1.Role_ROLE_UNSPECIFIED && !slices.Contains(m.GetRoles(), role)
	}))
}

func cloneMembers(list []*scribev1.Member) []*scribev1.Member {
	out := make([]*scribev1.Member, len(list))
	for i, m := range list {
		out[i] = proto.CloneOf(m)
	}
	return out
}

// Join implements rpc.ControlService. A member that joins again under its id keeps its slot.
func (c *ControlPlane) Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	what := fmt.Sprintf("join as member %q", shorten(req.GetMember().GetId()))
	var v request.Violations
	if req.GetMember() == nil {
		v.Add("member", "is missing")
	} else {
		v = checkMember(req.GetMember())
	}
	ttl := v.Duration("ttl", req.GetTtl(), minTTL, maxTTL, defaultTTL)
	if err := v.Err(what); err != nil {
		return nil, err
	}
	member := proto.CloneOf(req.GetMember())
	member.ProtoReflect().SetUnknown(nil)
	return serveLeading(ctx, c, what, req, rpc.ControlService.Join, func(ctx context.Context, term *heldTerm) (*scribev1.JoinResponse, error) {
		replaced, err := c.examineHolder(ctx, what, member)
		if err != nil {
			return nil, err
		}
		if err := c.checkStore(ctx, what, term, member.GetStore()); err != nil {
			return nil, err
		}
		if err := c.joinMember(ctx, what, term, member, replaced, ttl); err != nil {
			return nil, err
		}
		return &scribev1.JoinResponse{Member: proto.CloneOf(member), Ttl: durationpb.New(ttl)}, nil
	})
}

// joinMember gives a member a slot, stores it, and begins the lease. From then on the registry owns member. replaced is the incarnation whose lease it may end.
func (c *ControlPlane) joinMember(ctx context.Context, what string, term *heldTerm, member *scribev1.Member, replaced string, ttl time.Duration) error {
	m := c.members
	if err := m.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer m.turn.Release(1)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	now := time.Now()
	m.mu.Lock()
	registry := m.mu.registry // of the term; the next one has another, which has read what is stored here
	if holder := registry.findHolder(member.GetId(), member.GetIncarnation(), now); holder != nil && holder.incarnation() != replaced {
		m.mu.Unlock()
		return rpc.RetryErrorf(scribev1.Reason_REASON_MEMBER_REFUSED, minTTL, "%s: the process at %s has just joined with this id: try again", what, holder.member.GetUrl())
	}
	slot, free := registry.reserveSlot(member.GetId(), now)
	m.mu.Unlock()
	if slot == 0 {
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, max(free.Sub(now), minTTL), "%s: all %d slots are taken", what, c.cfg.MaxSlot)
	}
	member.Slot = slot
	member.JoinedAt = c.deps.Now().UnixMicro()
	value, err := encodeSlot(member, ttl, 0)
	if err == nil {
		_, err = c.deps.Store.Commit(ctx, term.only(kv.Put(slotKey(slot), value))...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		registry.abandonSlot(member.GetId(), ttl, time.Now())
		return c.termError(what, err)
	}
	registry.beginLease(member, ttl, time.Now())
	m.wakeWatches()
	m.wake.WakeUp()
	c.metrics.joins.Inc()
	c.logger.Info("member joined", "member", member.GetId(), "slot", slot, "roles", scribev1.RoleNames(member.GetRoles()), "url", member.GetUrl(), "ttl", ttl)
	return nil
}

// Heartbeat implements rpc.ControlService.
func (c *ControlPlane) Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	if req.GetLoad() > maxLoad {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "heartbeat of %q: load: %d is above %d", shorten(req.GetId()), req.GetLoad(), maxLoad)
	}
	what := fmt.Sprintf("heartbeat of %q", shorten(req.GetId()))
	var v request.Violations
	v.CheckText("incarnation", req.GetIncarnation(), maxIdentity)
	v.CheckText("store", req.GetStore(), maxIdentity)
	checkLoads(&v, req.GetLoads())
	if err := v.Err(what); err != nil {
		return nil, err
	}
	return serveLeading(ctx, c, what, req, rpc.ControlService.Heartbeat, func(ctx context.Context, term *heldTerm) (*scribev1.HeartbeatResponse, error) {
		if holder := c.members.findHolder(req.GetId(), req.GetIncarnation()); holder != nil {
			if holder.restored {
				// Nobody has spoken for it since: the process joins again, which asks at the holder's address.
				return nil, rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED, "%s: the control store knows another start of the program: join again", what)
			}
			return nil, c.errReplaced(what, holder)
		}
		// A control store that does not answer does not end a lease: the next heartbeat names the store again, and the process puts nothing meanwhile.
		unchecked := c.checkStore(ctx, what, term, req.GetStore())
		if rpc.ReasonOf(unchecked) == scribev1.Reason_REASON_MEMBER_REFUSED {
			return nil, unchecked
		}
		res, err := c.members.heartbeat(req)
		if err == nil {
			res.StoreUnchecked = unchecked != nil
			c.traffic.replaceReport(time.Now(), req.GetId(), req.GetTraffic())
		}
		return res, err
	})
}

// heartbeat renews a lease.
func (m *memberDriver) heartbeat(req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change, ok := m.mu.registry.renewLease(req, time.Now())
	if !ok {
		return nil, rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED, "heartbeat of %q: it has no lease: join again", shorten(req.GetId()))
	}
	m.mu.slight = m.mu.slight || change != sameLoad
	if change == clearChange && !m.mu.loads {
		m.mu.loads = true
		m.wake.WakeUp()
	}
	return &scribev1.HeartbeatResponse{}, nil
}

// Leave implements rpc.ControlService. Repeating it is harmless.
func (c *ControlPlane) Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	what := fmt.Sprintf("leave of %q", shorten(req.GetId()))
	return serveLeading(ctx, c, what, req, rpc.ControlService.Leave, func(ctx context.Context, term *heldTerm) (*scribev1.LeaveResponse, error) {
		return c.removeMember(ctx, what, term, req)
	})
}

// removeMember frees the slot of a member, and ends its lease.
func (c *ControlPlane) removeMember(ctx context.Context, what string, term *heldTerm, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	m := c.members
	if err := m.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer m.turn.Release(1)
	m.mu.Lock()
	registry := m.mu.registry
	lease := registry.leases[req.GetId()]
	slot, lived := registry.slots.byID[req.GetId()], lease != nil
	m.mu.Unlock()
	if slot == 0 || competes(lease, req.GetIncarnation()) { // nothing to leave, or another process has taken the id over
		return &scribev1.LeaveResponse{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	// The slot becomes free only after the deletion is stored: otherwise a restart could give it to two members.
	if _, err := c.deps.Store.Commit(ctx, term.only(kv.Delete(slotKey(slot)))...); err != nil {
		return nil, c.termError(what, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	registry.endLease(req.GetId())
	m.wakeWatches()
	if lived {
		c.metrics.leaves.Inc()
	}
	c.logger.Info("member left", "member", req.GetId(), "slot", slot)
	return &scribev1.LeaveResponse{}, nil
}

// ListMembers implements rpc.ControlService.
func (c *ControlPlane) ListMembers(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	return c.membersOf(ctx, req)
}

// membersOf returns the members that whoever leads knows.
func (c *ControlPlane) membersOf(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	return serveLeading(ctx, c, "list members", req, rpc.ControlService.ListMembers, func(context.Context, *heldTerm) (*scribev1.ListMembersResponse, error) {
		return &scribev1.ListMembersResponse{Members: c.members.listMembers(req.GetRole())}, nil
	})
}

// checkKeys fails if a category is to be encrypted while a batcher or a read proxy has no key file. One that joins later refuses what it can't
// encrypt; one of an older program does not know that it should.
func (c *ControlPlane) checkKeys(ctx context.Context, what string) error {
	resp, err := c.membersOf(ctx, &scribev1.ListMembersRequest{})
	if err != nil {
		return err
	}
	var without []string
	for _, m := range resp.GetMembers() {
		needs := slices.Contains(m.GetRoles(), scribev1.Role_ROLE_BATCHER) || slices.Contains(m.GetRoles(), scribev1.Role_ROLE_READPROXY)
		if needs && !m.GetHasKeys() {
			without = append(without, fmt.Sprintf("%s (%s)", m.GetId(), m.GetUrl()))
		}
	}
	if len(without) == 0 {
		return nil
	}
	const named = 5
	more := ""
	if n := len(without) - named; n > 0 {
		without, more = without[:named], fmt.Sprintf(" and %d more", n)
	}
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: encrypted: batchers and read proxies that have no key file, or are of an older program: %s%s: start them with --encryption-key-file first",
		what, strings.Join(without, ", "), more)
}

// WatchMembers implements rpc.ControlService. It ends with REASON_SHUTTING_DOWN when the control plane closes.
func (c *ControlPlane) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	heartbeat, done, err := c.enterWatch(watchMembers, req.GetHeartbeat())
	if err != nil {
		return err
	}
	defer done()
	term := c.leadership.currentTerm(time.Now())
	if term == nil {
		return c.forwardMembers(ctx, req, send)
	}
	timer := time.NewTimer(heartbeat)
	defer timer.Stop()
	// wait returns nil when changed is closed (nil = never) or after d, and an error when the control plane or ctx ends.
	wait := func(d time.Duration, changed <-chan struct{}) error {
		timer.Reset(d)
		select {
		case <-changed:
		case <-timer.C:
		case <-c.calls.Draining():
			return errClosing()
		case <-term.ended:
			return c.errNoLeader("watch members", errLeaderChanged.Error())
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	}
	for {
		list, changed := c.members.watchList()
		if !c.leadership.leadsIn(term) { // the list may be outdated: the client keeps its own until it finds the leader
			return c.errNoLeader("watch members", "this control plane is not certain to lead any more")
		}
		if err := send(&scribev1.WatchMembersResponse{Members: cloneMembers(list), SentAt: c.deps.Now().UnixMicro()}); err != nil {
			return err
		}
		if err := wait(c.cfg.MemberInterval, nil); err != nil {
			return err
		}
		// The list is the heartbeat: sending an unchanged list does no harm.
		if err := wait(max(heartbeat-c.cfg.MemberInterval, 0), changed); err != nil {
			return err
		}
	}
}
