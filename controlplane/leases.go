package controlplane

import (
	"context"
	"errors"
	"time"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// storeTimeout bounds how long the members wait for the store, since what they write is serialised.
const storeTimeout = 10 * time.Second

// restoreMembers reads what was written down of slots. Leases that lived then are taken to live for one more TTL, since the
// members may have sent heartbeats until a moment ago and will go on; so nobody sees them go and come.
func (c *ControlPlane) restoreMembers() error {
	ctx, cancel := context.WithTimeout(c.stopped, storeTimeout)
	defer cancel()
	now, wall := time.Now(), c.deps.Now()
	for e, err := range kv.All(ctx, c.deps.Store, slotPrefix) {
		if err != nil {
			return err
		}
		m, ttl, expiredAt, err := decodeSlot(e.Key, e.Value)
		if err != nil {
			// Its slot may be given to another. Epochs protect the logs.
			c.metrics.damaged.Inc()
			c.logger.Error("ignoring damaged member: its slot is free", "key", e.Key, "error", err)
			continue
		}
		if m.GetSlot() > c.cfg.MaxSlot {
			continue
		}
		var usable time.Time
		if expiredAt != 0 {
			// By the wall clock, which may have been set since: never longer than if it had expired now.
			usable = now.Add(min(time.UnixMicro(expiredAt).Add(ttl).Sub(wall), ttl))
		}
		c.members.restoreMember(m, ttl, now, usable)
	}
	return nil
}

// restoreMember is restore of the registry.
func (m *memberDriver) restoreMember(member *scribev1.Member, ttl time.Duration, now, usable time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.registry.restoreMember(member, ttl, now, usable)
}

// watchLeases ends leases when their time has come, and passes on changed loads, with one timer for all.
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
		c.writeExpired(expired)
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// expireLeases ends leases and tells the watches.
func (m *memberDriver) expireLeases(now time.Time) ([]*memberLease, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	expired, next := m.mu.registry.expireLeases(now)
	if len(expired) > 0 {
		m.wakeWatches()
	}
	return expired, next
}

// announceLoads tells the watches of changed loads, if it is time to: due says that it has, waiting that there are some.
func (m *memberDriver) announceLoads(now, from time.Time) (due, waiting bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mu.loads || now.Before(from) {
		return false, m.mu.loads
	}
	m.wakeWatches()
	return true, false
}

// writeExpired notes that leases have ended, so that a control plane that starts later does not take the members for alive. When
// it fails, that one will, for one TTL.
func (c *ControlPlane) writeExpired(expired []*memberLease) {
	if len(expired) == 0 {
		return
	}
	select {
	case c.members.turn <- struct{}{}:
	case <-c.stopped.Done():
		return
	}
	defer func() { <-c.members.turn }()
	ctx, cancel := context.WithTimeout(c.stopped, storeTimeout)
	defer cancel()
	wall := c.deps.Now().UnixMicro()
	for len(expired) > 0 {
		var ops []kv.Op
		n := min(len(expired), kv.MaxOps)
		for _, l := range expired[:n] {
			if !c.members.expiredHolder(l) {
				continue // it has joined again since, which is written already
			}
			value, err := encodeSlot(l.member, l.ttl, wall)
			if err != nil {
				c.logger.Error("expired lease not encoded", "member", l.member.GetId(), "error", err)
				continue
			}
			ops = append(ops, kv.Put(slotKey(l.member.GetSlot()), value))
		}
		expired = expired[n:]
		if len(ops) == 0 {
			continue
		}
		if _, err := c.deps.Store.Commit(ctx, ops...); err != nil && !errors.Is(err, context.Canceled) {
			c.logger.Error("expired leases not stored", "leases", len(ops), "error", err)
		}
	}
}

// expiredHolder reports whether a lease is over and its slot is still kept for its member.
func (m *memberDriver) expiredHolder(l *memberLease) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := l.member.GetId()
	return m.mu.registry.leases[id] == nil && m.mu.registry.slots.byID[id] == l.member.GetSlot()
}
