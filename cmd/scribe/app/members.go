package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"scribe/internal/cell/membership"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/writeproxy"
)

// startMembers follows the list of members, for routing.
func (a *App) startMembers(ctx context.Context) error {
	cfg := membership.DefaultViewConfig()
	cfg.File = filepath.Join(a.cfg.Data, "members")
	view, err := membership.NewView(cfg, membership.ViewDeps{Source: a.parts.control, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- view.Run(context.WithoutCancel(ctx)) }()
	a.onStop("member list", func(ctx context.Context) error { return errors.Join(view.Close(ctx), <-ended) })
	a.parts.members = view
	return nil
}

// joinTimeout is how long, at most, a process that needs no slot waits at its start to become a member, before it serves without;
// it is not longer than a lease.
const joinTimeout = 5 * time.Second

// leaveTimeout is how long a process that stops waits to tell the control plane so. What it has accepted needs the rest of the time that
// it has to stop, and its membership ends by itself.
const leaveTimeout = 2 * time.Second

// leaveCell ends the membership. A control plane that is away keeps no process from stopping in good order.
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

// joinCell makes the process a member of the cell, which is when others begin to send it work. A batcher needs its slot, so it waits for
// the control plane. Others do their work with what they knew last while it is away, and become members when it is back.
func (a *App) joinCell(ctx context.Context) error {
	joined := make(chan struct{})
	var once sync.Once
	cfg := membership.LeaseConfig{
		Member: &scribev1.Member{Id: a.id, Roles: a.protoRoles(), Url: a.advertisedURL(), Version: a.opts.Version},
		TTL:    a.cfg.LeaseTTL, Logger: a.log, Load: a.currentLoad,
		// The slot stays in use while the control plane is away: epochs, not leases, keep two writers apart.
		OnChange: func(s membership.LeaseState) {
			a.slot.Store(s.Slot)
			once.Do(func() { close(joined) })
		},
	}
	if a.cfg.Has(Batcher) {
		lease, err := membership.Join(ctx, a.parts.control, cfg)
		if err != nil {
			return fmt.Errorf("join the cell: %w", err)
		}
		a.onStop("membership", a.leaveCell(lease))
		return a.awaitOwnBatcher(ctx)
	}
	lease, err := membership.Keep(a.parts.control, cfg)
	if err != nil {
		return fmt.Errorf("join the cell: %w", err)
	}
	a.onStop("membership", a.leaveCell(lease))
	timer := time.NewTimer(min(joinTimeout, a.cfg.LeaseTTL))
	defer timer.Stop()
	select {
	case <-joined:
	case <-timer.C:
		a.log.Warn("control plane unavailable: serving with the last known state", "control", a.cfg.Control)
	case <-ctx.Done():
		return fmt.Errorf("join the cell: %w", context.Cause(ctx))
	}
	return nil
}

// currentLoad is how full the process says that it is: the fullest of its batcher and its read stream, which are chosen by load.
func (a *App) currentLoad() (most uint32) {
	for _, load := range a.parts.loads {
		most = max(most, load())
	}
	return min(most, maxLoad)
}

// readStreamPeers are the loads of the other processes that have a read stream.
func (a *App) readStreamPeers() (loads []uint32) {
	for _, m := range a.parts.members.Members(scribev1.Role_ROLE_READSTREAM) {
		if m.GetId() != a.id {
			loads = append(loads, m.GetLoad())
		}
	}
	return loads
}

// maxLoad is the load of one who refuses.
const maxLoad = 1000

// countWriteProxies is how many write proxies the cell has, as far as it is known, this one included.
func (a *App) countWriteProxies() int {
	members := a.parts.members.Members(scribev1.Role_ROLE_WRITEPROXY)
	n := len(members)
	if !slices.ContainsFunc(members, func(m *scribev1.Member) bool { return m.GetId() == a.id }) {
		n++
	}
	return n
}

// awaitOwnBatcher waits until the write proxy of this process knows the batcher of this process: the first write after the start
// must not fail for lack of one.
func (a *App) awaitOwnBatcher(ctx context.Context) error {
	if !a.cfg.Has(Batcher) || !a.cfg.Has(WriteProxy) {
		return nil
	}
	for {
		members, changed := a.parts.members.Watch(scribev1.Role_ROLE_BATCHER)
		for _, m := range members {
			if m.GetId() == a.id {
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the membership does not show this process: %w", context.Cause(ctx))
		}
	}
}

// batcherRoutes turns the members that are batchers into what the write proxy routes to. It returns the same slice until they change.
//
// A process that stops leaves the membership first, and drains afterwards: what its agent and its write proxy still hold goes to
// its own batcher when the list names no other.
//
// A list without batchers, which a control plane has that came back after their leases, or without its store, does not mean that there are
// none: those of the last one that named some are tried until there are others. Any batcher can take any frame, and one that is gone is found
// out by calling it.
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
		current = append(current, writeproxy.Batcher{ID: m.GetId(), Load: m.GetLoad(), Service: svc})
	}
	if len(current) == 0 && r.app.parts.batcher != nil {
		current = append(current, writeproxy.Batcher{ID: r.app.id, Service: r.app.parts.batcher})
	}
	r.made, r.members, r.current, r.clients = true, members, current, clients
	return current
}
