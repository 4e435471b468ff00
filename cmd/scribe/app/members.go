package app

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/batcher"
	"scribe/internal/base/balance"
	"scribe/internal/cell/membership"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/writeproxy"
)

// startMembers follows the list of members, for routing.
func (a *App) startMembers(ctx context.Context) error {
	cfg := membership.DefaultViewConfig()
	cfg.File, cfg.FS, cfg.Now = filepath.Join(a.cfg.Data, "members"), a.opts.Host.FS, a.opts.Host.Now
	cfg.Random = a.opts.Host.Random.Named("members")
	view, err := membership.NewView(cfg, membership.ViewDeps{Source: a.parts.control, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.runView(ctx, "member list", view)
	a.parts.members = view
	return nil
}

// joinTimeout is how long a process that needs no slot waits for its membership before it serves without one. The lease's TTL bounds it as
// well.
const joinTimeout = 5 * time.Second

// leaveTimeout bounds leaving the cell when the process stops. The rest of the shutdown time is for draining accepted messages, and the
// membership expires by itself.
const leaveTimeout = 2 * time.Second

// leaveCell ends the membership. An unavailable control plane does not keep the process from stopping properly.
func (a *App) leaveCell(lease *membership.Lease) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		if err := lease.Close(ctx); err != nil {
			a.log.WarnContext(ctx, "failed to leave the cell: the membership expires by itself", "after", a.cfg.LeaseTTL, "error", err)
		}
		return nil
	}
}

// joinCell makes the process a member of the cell; then others begin to send it work. A batcher needs its slot, so it waits for the control
// plane. Other roles work with the last known state while the control plane is unavailable, and join when it is back.
func (a *App) joinCell(ctx context.Context) error {
	joined := make(chan struct{})
	var once sync.Once
	refused := make(chan error, 1)
	cfg := membership.LeaseConfig{
		Member: &scribev1.Member{Id: a.id, Roles: a.protoRoles(), Url: a.advertisedURL(), Version: a.opts.Version, Incarnation: a.incarnation, SharesQuotas: true, OwnCategories: true, HasKeys: a.cfg.Blobs.KeyFile != "", RemovedLogs: true},
		TTL:    a.cfg.LeaseTTL, Logger: a.log, Loads: a.currentLoads, Store: a.store.identity, Random: a.opts.Host.Random.Named("membership"),
		OnRefused: func(err error) { refused <- err },
		// The slot stays in use while the control plane is unavailable: epochs, not leases, fence a second writer.
		OnChange: func(s membership.LeaseState) {
			a.slot.Store(s.Slot)
			a.store.noteAdmitted(s.Store)
			once.Do(func() { close(joined) })
		},
	}
	if p := a.parts.writeProxy; p != nil {
		cfg.Traffic = p.TrafficReport
	}
	if a.cfg.Has(Batcher) {
		lease, err := membership.Join(ctx, a.parts.control, cfg)
		if err != nil {
			return fmt.Errorf("join the cell: %w", err)
		}
		a.onStop("membership", a.leaveCell(lease))
		a.watchLease(lease)
		a.endWhenRefused(refused)
		return a.awaitOwnBatcher(ctx)
	}
	lease, err := membership.Keep(a.parts.control, cfg)
	if err != nil {
		return fmt.Errorf("join the cell: %w", err)
	}
	a.onStop("membership", a.leaveCell(lease))
	a.watchLease(lease)
	timer := time.NewTimer(min(joinTimeout, a.cfg.LeaseTTL))
	defer timer.Stop()
	select {
	case <-joined:
	case err := <-refused:
		return fmt.Errorf("join the cell: %w", err)
	case <-timer.C:
		a.log.Warn("control plane unavailable: serving with the last known state", "control", a.cfg.Control)
	case <-ctx.Done():
		return fmt.Errorf("join the cell: %w", context.Cause(ctx))
	}
	a.endWhenRefused(refused)
	return nil
}

// endWhenRefused ends the process when the cell refuses it: another process has its id and its writer slot, or its payloads are where the cell does not look.
func (a *App) endWhenRefused(refused <-chan error) {
	watchFailure(a, refused, func(err error) error { return fmt.Errorf("the cell refuses this process: %w", err) })
}

// advertisedLoad is the load of a role, as heartbeats tell it.
type advertisedLoad struct {
	role  scribev1.Role
	read  func() uint32
	meter balance.LoadMeter
	// told is what the last heartbeat told.
	told atomic.Uint32
}

// advertiseLoad lets heartbeats tell the load of a role.
func (a *App) advertiseLoad(role scribev1.Role, read func() uint32) {
	a.parts.loads = append(a.parts.loads, &advertisedLoad{role: role, read: read})
}

// currentLoads returns the loads of the roles that callers choose among. It is called once for each heartbeat.
func (a *App) currentLoads() []*scribev1.RoleLoad {
	loads := make([]*scribev1.RoleLoad, 0, len(a.parts.loads))
	for _, l := range a.parts.loads {
		load := l.meter.Smooth(l.read())
		l.told.Store(load)
		loads = append(loads, &scribev1.RoleLoad{Role: l.role, Load: load})
	}
	return loads
}

// readStreamPeers returns the loads of the other processes with a read stream.
func (a *App) readStreamPeers() (loads []uint32) {
	for _, m := range a.parts.members.Members(scribev1.Role_ROLE_READSTREAM) {
		if load, known := m.LoadOf(scribev1.Role_ROLE_READSTREAM); known && m.GetId() != a.id {
			loads = append(loads, load)
		}
	}
	return loads
}

// countSharers returns the known number of processes in the cell with a role that this one has, including this one: they share the quotas
// that the role enforces.
func (a *App) countSharers(role scribev1.Role) int {
	members := a.parts.members.Members(role)
	n := len(members)
	if !slices.ContainsFunc(members, a.isMember) {
		n++
	}
	return n
}

// isMember reports whether m is this process.
func (a *App) isMember(m *scribev1.Member) bool { return m.GetId() == a.id }

// provision tells the batcher of this process which logs to open before their records come.
func (a *App) provision() *batcher.Provision {
	return &batcher.Provision{
		Plans: a.parts.catalog.Plans,
		Batchers: func() (ids []string, replaced <-chan struct{}) {
			members, replaced := a.parts.members.Watch(scribev1.Role_ROLE_BATCHER)
			for _, m := range members {
				ids = append(ids, m.GetId())
			}
			return ids, replaced
		},
	}
}

// awaitOwnBatcher waits until the write proxy of this process knows the batcher of this process, so that the first write after the start does
// not fail for lack of a batcher.
func (a *App) awaitOwnBatcher(ctx context.Context) error {
	if !a.cfg.Has(WriteProxy) {
		return nil
	}
	for {
		members, changed := a.parts.members.Watch(scribev1.Role_ROLE_BATCHER)
		if slices.ContainsFunc(members, a.isMember) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the membership does not show this process: %w", context.Cause(ctx))
		}
	}
}

// batcherRoutes maps the batchers among the members to the write proxy's routes. It returns the same slice until they change.
//
// A process that stops leaves the membership first and drains afterwards. Frames that its agent and its write proxy still hold go to its own
// batcher if the list has no other.
//
// A list without batchers does not mean that there are none: a control plane that restarts after their leases expired, or without its store,
// has such a list. The batchers of the last list that had any are tried until there are others. Any batcher can take any frame, and a call
// to a stopped one fails.
type batcherRoutes struct {
	app *App

	mu      sync.Mutex
	made    bool               // current was
	members []*scribev1.Member // what it was made of
	current []writeproxy.Batcher
	clients map[string]rpc.BatchService // by URL
}

func (r *batcherRoutes) routableBatchers() []writeproxy.Batcher {
	members := r.app.parts.members.Members(scribev1.Role_ROLE_BATCHER)
	if len(members) == 0 && r.app.parts.batcher == nil {
		members = r.app.parts.members.Last(scribev1.Role_ROLE_BATCHER)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made && len(members) == len(r.members) && (len(members) == 0 || &members[0] == &r.members[0]) {
		return r.current
	}
	clients := make(map[string]rpc.BatchService, len(members))
	current := make([]writeproxy.Batcher, 0, len(members))
	for _, m := range members {
		svc := r.clients[m.GetUrl()]
		if m.GetId() == r.app.id && r.app.parts.batcher != nil {
			svc = r.app.parts.batcher
		} else if svc == nil {
			svc = rpc.NewBatchClient(r.app.transport, m.GetUrl())
		}
		clients[m.GetUrl()] = svc
		b := writeproxy.Batcher{ID: m.GetId(), Service: svc}
		b.Load, b.LoadKnown = m.LoadOf(scribev1.Role_ROLE_BATCHER)
		if age, known := r.app.parts.members.AgeOf(m); known {
			b.Start, b.Age = balance.StartOf(m.GetIncarnation(), m.GetJoinedAt()), age
		}
		current = append(current, b)
	}
	if len(current) == 0 && r.app.parts.batcher != nil {
		current = append(current, writeproxy.Batcher{ID: r.app.id, Service: r.app.parts.batcher})
	}
	r.made, r.members, r.current, r.clients = true, members, current, clients
	return current
}

// pushRoutes maps the read proxies among the members to those that the batcher pushes blocks to. It returns the same slice until they
// change. The homes of blobs follow from the members' URLs, as they do for clients.
type pushRoutes struct {
	app *App

	mu      sync.Mutex
	members []*scribev1.Member // what current was made of
	local   rpc.PushService    // likewise
	current []batcher.ReadProxy
	clients map[string]rpc.PushService // by URL
}

func (r *pushRoutes) readProxies() []batcher.ReadProxy {
	members := r.app.parts.members.Members(scribev1.Role_ROLE_READPROXY)
	var local rpc.PushService
	if p := r.app.parts.push.Load(); p != nil {
		local = *p
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if local == r.local && len(members) == len(r.members) && (len(members) == 0 || &members[0] == &r.members[0]) {
		return r.current
	}
	clients := make(map[string]rpc.PushService, len(members))
	current := make([]batcher.ReadProxy, 0, len(members))
	for _, m := range members {
		url := m.GetUrl()
		if url == "" {
			continue
		}
		svc := r.clients[url]
		if m.GetId() == r.app.id && local != nil {
			svc = local
		} else if svc == nil {
			svc = rpc.NewPushClient(r.app.transport, url)
		}
		clients[url] = svc
		current = append(current, batcher.ReadProxy{URL: url, Service: svc})
	}
	r.members, r.local, r.current, r.clients = members, local, current, clients
	return current
}
