package writeproxy

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/balance"
	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// assessInterval is the minimum time between two assessments of the batchers' health.
const assessInterval = 250 * time.Millisecond

// batcherFleet tracks the health of the batchers, and the table of weights derived from it. Requests drive it; it has no timer.
type batcherFleet struct {
	batchers func() []Batcher
	now      func() time.Duration
	stall    time.Duration
	random   *entropy.Source
	// probe sends a probe to a batcher in a goroutine of its own, and calls fleetMember.endProbe.
	probe func(b *Batcher, m *fleetMember)
	// changes counts changes of weights, trips the times that a batcher became unavailable.
	changes, trips atomic.Int64
	// warmUp is the time in which a batcher that has just started comes to its share.
	warmUp time.Duration

	latest atomic.Pointer[routeTable]
	// stale: a batcher's health has changed so much that a new assessment is due. next is the time of the next regular one.
	stale atomic.Bool
	next  atomic.Int64

	mu struct {
		sync.Mutex
		members map[string]*fleetMember // of the latest table
	}
}

// fleetMember is the health of one batcher. Its lock is a leaf.
type fleetMember struct {
	fleet *batcherFleet
	// ordered says that the batcher's last answer had SubmitResponse.ordered.
	ordered atomic.Bool
	mu      struct {
		sync.Mutex
		health batcherHealth
	}
}

// currentTable returns the newest table, after an assessment if one is due.
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
		return t // another request assesses the batchers
	}
	defer f.mu.Unlock()
	return f.assessMembers(now, snapshot)
}

// assessMembers updates the weight of every batcher, sends probes that are due, and returns a new table if anything changed. f.mu
// is held.
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
				m.mu.health.balance.SetWarmUp(f.warmUp)
			}
			kept[snapshot[i].ID], members[i] = m, m
		}
		f.mu.members = kept
	} else {
		members = old.members
	}
	views := make([]balance.View, 0, len(members))
	for i, m := range members {
		if view, usable := m.updateReport(now, &snapshot[i]); usable {
			views = append(views, view)
		}
	}
	typical := balance.TypicalOf(views)
	weights := make([]float64, len(snapshot))
	for i, m := range members {
		var probe bool
		weights[i], probe = m.updateWeight(now, typical)
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

// updateReport takes over what the membership says of the batcher, and returns what is known of it; usable is false while its breaker is open.
func (m *fleetMember) updateReport(now time.Duration, b *Batcher) (view balance.View, usable bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.health
	v.balance.Begin(now, b.Start, b.Age)
	v.balance.Advertise(now, b.Load, b.LoadKnown)
	return v.balance.View(now), !v.open
}

// updateWeight returns the member's weight, and whether a probe is to be sent.
func (m *fleetMember) updateWeight(now time.Duration, typical balance.Typical) (weight float64, probe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.health
	open := v.open
	v.tripStalled(now)
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	if v.balance.Decide(now, typical, m.fleet.random) {
		m.fleet.changes.Add(1)
	}
	return v.weight(), v.takeProbe(now)
}

// noLoad is the load of an answer without load information.
const noLoad = -1

// beginRequest counts a request to the batcher, and returns its start time.
func (m *fleetMember) beginRequest() time.Duration {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.health.beginRequest(now)
	return now
}

// endRequest records the end of a request that began at start. measured reports that its latency is comparable with that of other
// batchers.
func (m *fleetMember) endRequest(start time.Duration, how callEnding, load int64, verdict callVerdict, measured bool) {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.health
	open := v.open
	v.endRequest(now, how)
	if load != noLoad {
		v.balance.NoteLoad(now, uint32(load)) //nolint:gosec // it came from one
	}
	if measured || how == endSilent {
		v.balance.NoteLatency(now, now-start)
	}
	if verdict != callUnjudged {
		v.balance.NoteOutcome(now, verdict == callWorked)
	}
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	// The comparison with other batchers can wait for the next assessment; a batcher's own load counts at once.
	if v.open != open || v.balance.IsPressed() {
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

// countDegraded returns the number of unavailable batchers (open), and of those with reduced weight (light).
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
		case v.balance.Level() > 0:
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
