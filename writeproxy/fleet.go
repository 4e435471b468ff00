package writeproxy

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// assessInterval is how often, at most, the batchers' conditions are compared while requests come.
const assessInterval = 250 * time.Millisecond

// batcherFleet is the batchers: their conditions, and the table of weights that follows from these. Requests drive it; it has no timer.
type batcherFleet struct {
	batchers func() []Batcher
	now      func() time.Duration
	stall    time.Duration
	// probe asks a batcher whether it is there, in a goroutine of its own, and tells member.probed.
	probe func(b *Batcher, m *fleetMember)
	// changes counts weights that changed, trips batchers that were left alone.
	changes, trips atomic.Int64

	latest atomic.Pointer[routeTable]
	// stale says that a condition changed so much that a new table is due; next is when one is due anyway.
	stale atomic.Bool
	next  atomic.Int64

	mu struct {
		sync.Mutex
		members map[string]*fleetMember // of the latest table
	}
}

// fleetMember is a batcher's condition. Its lock is a leaf.
type fleetMember struct {
	fleet *batcherFleet
	mu    struct {
		sync.Mutex
		health batcherHealth
	}
}

// currentTable returns the newest one.
func (f *batcherFleet) currentTable() *routeTable {
	now := f.now()
	snapshot := f.batchers()
	t := f.latest.Load()
	current := t != nil && t.isOf(snapshot)
	if current && !f.stale.Load() && int64(now) < f.next.Load() {
		return t
	}
	if !current {
		f.mu.Lock()
	} else if !f.mu.TryLock() {
		return t // somebody else is at it
	}
	defer f.mu.Unlock()
	return f.assessMembers(now, snapshot)
}

// assessMembers weighs every batcher, has those probed that are due, and makes a table if anything changed. f.mu is held.
func (f *batcherFleet) assessMembers(now time.Duration, snapshot []Batcher) *routeTable {
	f.stale.Store(false)
	f.next.Store(int64(now + assessInterval))
	old := f.latest.Load()
	changed := old == nil || !old.isOf(snapshot)
	members := make([]*fleetMember, len(snapshot))
	if changed {
		kept := make(map[string]*fleetMember, len(snapshot))
		for i := range snapshot {
			m := f.mu.members[snapshot[i].ID]
			if m == nil {
				m = &fleetMember{fleet: f}
				m.mu.health.stall = f.stall
			}
			kept[snapshot[i].ID], members[i] = m, m
		}
		f.mu.members = kept
	} else {
		members = old.members
	}
	median := medianLatency(members, now)
	weights := make([]float64, len(snapshot))
	for i, m := range members {
		var probe bool
		weights[i], probe = m.updateWeight(now, snapshot[i].Load, median)
		if probe {
			f.probe(&snapshot[i], m)
		}
	}
	if !changed && slices.Equal(weights, old.weights) {
		return old
	}
	t := newRouteTable(snapshot, members, weights)
	f.latest.Store(t)
	return t
}

// medianLatency is the lower median of the batchers' latencies in seconds, 0 when none is known.
func medianLatency(members []*fleetMember, now time.Duration) float64 {
	known := make([]float64, 0, len(members))
	for _, m := range members {
		m.mu.Lock()
		if m.mu.health.samples > 0 && !m.mu.health.open && now-m.mu.health.latencyAt < oldLatency {
			known = append(known, m.mu.health.latency)
		}
		m.mu.Unlock()
	}
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[(len(known)-1)/2]
}

// updateWeight returns the member's weight, and whether a probe is to be sent.
func (m *fleetMember) updateWeight(now time.Duration, advertised uint32, median float64) (weight float64, probe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.health
	v.noteAdvertised(now, advertised)
	open := v.open
	v.tripStalled(now)
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	if v.updateLevel(now, median) {
		m.fleet.changes.Add(1)
	}
	return v.weight(), v.takeProbe(now)
}

// noLoad stands for an answer that says nothing of the batcher's load.
const noLoad = -1

// beginRequest notes a request to the batcher, and returns when that was.
func (m *fleetMember) beginRequest() time.Duration {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.health.beginRequest(now)
	return now
}

// endRequest notes how a request ended that began at start. measured says that its time is comparable with that of others.
func (m *fleetMember) endRequest(start time.Duration, how callEnding, load int64, measured bool) {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.health
	open := v.open
	v.endRequest(now, how)
	if load != noLoad {
		v.noteOwnLoad(now, uint32(load)) //nolint:gosec // it came from one
	}
	if measured || how == endSilent {
		v.noteLatency(now, now-start)
	}
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	// How it compares with the others is looked at now and then; what it says of itself counts at once.
	if v.open != open || v.isPressed(now) {
		m.fleet.stale.Store(true)
	}
}

// endProbe notes how a probe ended.
func (m *fleetMember) endProbe(ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.health.endProbe(m.fleet.now(), ok)
	m.fleet.stale.Store(true)
}

// countDegraded reports how many batchers are left alone, and how many get less than their full share.
func (f *batcherFleet) countDegraded() (open, light int) {
	t := f.latest.Load()
	if t == nil {
		return 0, 0
	}
	for _, m := range t.members {
		m.mu.Lock()
		switch v := &m.mu.health; {
		case v.open:
			open++
		case v.level > 0:
			light++
		}
		m.mu.Unlock()
	}
	return open, light
}

// sendProbe sends a batcher a request without frames. Its goroutine ends with the proxy.
func (p *Proxy) sendProbe(b *Batcher, m *fleetMember) {
	p.probes.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, p.cfg.StallAfter)
		defer cancel()
		_, err := b.Service.Submit(ctx, &scribev1.SubmitRequest{Ack: scribev1.AckLevel_ACK_LEVEL_NONE})
		alive := err == nil || rpc.ReasonOf(err) == scribev1.Reason_REASON_OVERLOADED
		result := "alive"
		if !alive {
			result = "dead"
		}
		p.metrics.probes.WithLabelValues(result).Inc()
		m.endProbe(alive)
	})
}
