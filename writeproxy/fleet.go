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

// fleet is the batchers: their conditions, and the table of weights that follows from these. Requests drive it; it has no timer.
type fleet struct {
	batchers func() []Batcher
	now      func() time.Duration
	stall    time.Duration
	// probe asks a batcher whether it is there, in a goroutine of its own, and tells member.probed.
	probe func(b *Batcher, m *member)
	// changes counts weights that changed, trips batchers that were left alone.
	changes, trips atomic.Int64

	latest atomic.Pointer[table]
	// stale says that a condition changed so much that a new table is due; next is when one is due anyway.
	stale atomic.Bool
	next  atomic.Int64

	mu struct {
		sync.Mutex
		members map[string]*member // of the latest table
	}
}

// member is a batcher's condition. Its lock is a leaf.
type member struct {
	fleet *fleet
	mu    struct {
		sync.Mutex
		vital vital
	}
}

// table returns the newest one.
func (f *fleet) table() *table {
	now := f.now()
	snapshot := f.batchers()
	t := f.latest.Load()
	current := t != nil && t.of(snapshot)
	if current && !f.stale.Load() && int64(now) < f.next.Load() {
		return t
	}
	if !current {
		f.mu.Lock()
	} else if !f.mu.TryLock() {
		return t // somebody else is at it
	}
	defer f.mu.Unlock()
	return f.assess(now, snapshot)
}

// assess weighs every batcher, has those probed that are due, and makes a table if anything changed. f.mu is held.
func (f *fleet) assess(now time.Duration, snapshot []Batcher) *table {
	f.stale.Store(false)
	f.next.Store(int64(now + assessInterval))
	old := f.latest.Load()
	changed := old == nil || !old.of(snapshot)
	members := make([]*member, len(snapshot))
	if changed {
		kept := make(map[string]*member, len(snapshot))
		for i := range snapshot {
			m := f.mu.members[snapshot[i].ID]
			if m == nil {
				m = &member{fleet: f}
				m.mu.vital.stall = f.stall
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
		weights[i], probe = m.weigh(now, snapshot[i].Load, median)
		if probe {
			f.probe(&snapshot[i], m)
		}
	}
	if !changed && slices.Equal(weights, old.weights) {
		return old
	}
	t := newTable(snapshot, members, weights)
	f.latest.Store(t)
	return t
}

// medianLatency is the lower median of the batchers' latencies in seconds, 0 when none is known.
func medianLatency(members []*member, now time.Duration) float64 {
	known := make([]float64, 0, len(members))
	for _, m := range members {
		m.mu.Lock()
		if m.mu.vital.samples > 0 && !m.mu.vital.open && now-m.mu.vital.latencyAt < oldLatency {
			known = append(known, m.mu.vital.latency)
		}
		m.mu.Unlock()
	}
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[(len(known)-1)/2]
}

// weigh returns the member's weight, and whether a probe is to be sent.
func (m *member) weigh(now time.Duration, advertised uint32, median float64) (weight float64, probe bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.vital
	v.advertised(now, advertised)
	open := v.open
	v.look(now)
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	if v.weigh(now, median) {
		m.fleet.changes.Add(1)
	}
	return v.weight(), v.probe(now)
}

// noLoad stands for an answer that says nothing of the batcher's load.
const noLoad = -1

// begin notes a request to the batcher, and returns when that was.
func (m *member) begin() time.Duration {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.vital.begin(now)
	return now
}

// end notes how a request ended that began at start. measured says that its time is comparable with that of others.
func (m *member) end(start time.Duration, how ending, load int64, measured bool) {
	now := m.fleet.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &m.mu.vital
	open := v.open
	v.end(now, how)
	if load != noLoad {
		v.says(now, uint32(load)) //nolint:gosec // it came from one
	}
	if measured || how == endSilent {
		v.took(now, now-start)
	}
	if v.open && !open {
		m.fleet.trips.Add(1)
	}
	// How it compares with the others is looked at now and then; what it says of itself counts at once.
	if v.open != open || v.pressed(now) {
		m.fleet.stale.Store(true)
	}
}

// probed notes how a probe ended.
func (m *member) probed(ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.vital.probed(m.fleet.now(), ok)
	m.fleet.stale.Store(true)
}

// countDegraded reports how many batchers are left alone, and how many get less than their full share.
func (f *fleet) countDegraded() (open, light int) {
	t := f.latest.Load()
	if t == nil {
		return 0, 0
	}
	for _, m := range t.members {
		m.mu.Lock()
		switch v := &m.mu.vital; {
		case v.open:
			open++
		case v.level > 0:
			light++
		}
		m.mu.Unlock()
	}
	return open, light
}

// probe sends a batcher a request without frames. Its goroutine ends with the proxy.
func (p *Proxy) probe(b *Batcher, m *member) {
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
		m.probed(alive)
	})
}
