package controlplane

import (
	"context"
	"errors"
	"time"

	"scribe/storage/kv"
)

// storeTimeout bounds writes of the members to the store, since these writes are serialised.
const storeTimeout = 10 * time.Second

// loadMembers reads the stored slots. Leases that were live then get one more TTL, since their members may have sent heartbeats
// until a moment ago and will continue; so watchers do not see them leave and join again.
func (c *ControlPlane) loadMembers(ctx context.Context) (*memberRegistry, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r := newRegistry(c.cfg.MaxSlot)
	now, wall := time.Now(), c.deps.Now()
	for e, err := range kv.All(ctx, c.deps.Store, slotPrefix) {
		if err != nil {
			return nil, err
		}
		m, ttl, expiredAt, err := decodeSlot(e.Key, e.Value)
		if err != nil {
			// Its slot may be given to another member. Epochs protect the logs.
			c.metrics.damaged.Inc()
			c.logger.Error("ignoring damaged member: its slot is free", "key", e.Key, "error", err)
			continue
		}
		if m.GetSlot() > c.cfg.MaxSlot {
			continue
		}
		var usable time.Time
		if expiredAt != 0 {
			// By the wall clock, which may have been set since: never longer than for a lease that expired now.
			usable = now.Add(min(time.UnixMicro(expiredAt).Add(ttl).Sub(wall), ttl))
		}
		r.restoreMember(m, ttl, now, usable)
	}
	return r, nil
}

// watchLeases expires leases when they are due, and announces changed loads, with one timer for all.
func (c *ControlPlane) watchLeases() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var announced time.Time
	for {
		select {
		case <-c.stopped.Done():
			return
		case <-timer.C:
		case <-c.members.wake:
		}
		now := time.Now()
		term := c.leadership.currentTerm(now)
		if term == nil { // the leader decides; and this one, if it is not certain to lead, may have missed heartbeats
			timer.Stop()
			continue
		}
		expired, next := c.members.expireLeases(now)
		for _, l := range expired {
			c.metrics.expiries.Inc()
			c.logger.Warn("member lease expired", "member", l.member.GetId(), "slot", l.member.GetSlot(), "ttl", l.ttl)
		}
		if due, waiting := c.members.announceLoads(now, announced.Add(c.cfg.LoadInterval)); due {
			announced = now
		} else if waiting && (next.IsZero() || announced.Add(c.cfg.LoadInterval).Before(next)) {
			next = announced.Add(c.cfg.LoadInterval)
		}
		c.writeExpired(term, expired)
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// expireLeases expires leases and wakes the watches.
func (m *memberDriver) expireLeases(now time.Time) ([]*memberLease, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	expired, next := m.mu.registry.expireLeases(now)
	if len(expired) > 0 {
		m.wakeWatches()
	}
	return expired, next
}

// announceLoads wakes the watches for changed loads, but not before from. due says that it woke them, waiting that changed loads
// still wait.
func (m *memberDriver) announceLoads(now, from time.Time) (due, waiting bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.loads || now.Before(from) {
		return false, m.mu.loads
	}
	m.wakeWatches()
	return true, false
}

// writeExpired stores that leases have expired, so that a later control plane does not take the members for alive. If the write
// fails, that control plane will, for one TTL.
func (c *ControlPlane) writeExpired(term *heldTerm, expired []*memberLease) {
	if len(expired) == 0 || c.members.turn.Acquire(c.stopped, 1) != nil {
		return
	}
	defer c.members.turn.Release(1)
	ctx, cancel := context.WithTimeout(c.stopped, storeTimeout)
	defer cancel()
	wall := c.deps.Now().UnixMicro()
	var ops []kv.Op
	for _, l := range expired {
		if !c.members.expiredHolder(l) {
			continue // it has joined again since, which is stored already
		}
		value, err := encodeSlot(l.member, l.ttl, wall)
		if err != nil {
			c.logger.Error("expired lease not encoded", "member", l.member.GetId(), "error", err)
			continue
		}
		ops = append(ops, kv.Put(slotKey(l.member.GetSlot()), value))
	}
	for _, part := range kv.SplitOps(ops, 1) {
		_, err := c.deps.Store.Commit(ctx, term.only(part...)...)
		if errors.Is(err, kv.ErrConflict) {
			c.leadership.wake.WakeUp() // another instance leads, and has its own leases
			return
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			c.logger.Error("expired leases not stored", "leases", len(part), "error", err)
		}
	}
}

// expiredHolder reports whether a lease has expired and its slot is still kept for its member.
func (m *memberDriver) expiredHolder(l *memberLease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := l.member.GetId()
	return m.mu.registry.leases[id] == nil && m.mu.registry.slots.byID[id] == l.member.GetSlot()
}
