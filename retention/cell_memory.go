package retention

import (
	"slices"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/role/affinity"
	scribev1 "scribe/proto/scribe/v1"
)

// cellMemory is what a keeper has seen of the cell: its members, and the plans for which logs are open. What was there within the grace
// counts as being there: a member whose lease expires for a moment is missing in the list, and all of them are while a control plane begins
// anew. It does no I/O. Times are the engine's, in Unix microseconds.
type cellMemory struct {
	grace int64
	// unready is when a member was seen last that does not know removed logs, or the keeper began to look; 0 before.
	unready int64
	// present are the hashes of the batchers of the last list; batchers are those seen within the grace, by writer slot.
	present  []uint64
	batchers map[uint16]seenBatcher
	plans    map[plannedShard]seenPlan
}

type seenBatcher struct {
	hash uint64
	at   int64
}

// plannedShard is a logical shard with a plan.
type plannedShard struct {
	category, shard uint32
}

// seenPlan is for how many batchers a shard's log was to be open, and when that was seen last.
type seenPlan struct {
	logs uint32
	at   int64
}

func newCellMemory(grace time.Duration) *cellMemory {
	return &cellMemory{grace: grace.Microseconds(), batchers: map[uint16]seenBatcher{}, plans: map[plannedShard]seenPlan{}}
}

// observe takes the members of the cell and the plans of now.
func (m *cellMemory) observe(members []*scribev1.Member, plans map[uint32]*scribev1.CategoryPlan, now int64) {
	older := slices.ContainsFunc(members, func(x *scribev1.Member) bool { return !x.GetRemovedLogs() })
	if m.unready == 0 || len(members) == 0 || older {
		m.unready = now
	}
	m.present = m.present[:0]
	for _, x := range members {
		if slices.Contains(x.GetRoles(), scribev1.Role_ROLE_BATCHER) {
			hash := affinity.HashOf(x.GetId())
			m.present = append(m.present, hash)
			m.batchers[uint16(x.GetSlot())] = seenBatcher{hash: hash, at: now} //nolint:gosec // slots are below 65,000
		}
	}
	for slot, b := range m.batchers {
		if now-b.at > m.grace {
			delete(m.batchers, slot)
		}
	}
	for id, plan := range plans {
		for _, p := range plan.GetShards() {
			key := plannedShard{category: id, shard: p.GetShard()}
			if seen := m.plans[key]; p.GetLogs() >= seen.logs || now-seen.at > m.grace {
				m.plans[key] = seenPlan{logs: p.GetLogs(), at: now}
			}
		}
	}
	for key, seen := range m.plans {
		if now-seen.at > m.grace {
			delete(m.plans, key)
		}
	}
}

// mayRemove reports whether all members that were seen within the grace know removed logs, and the keeper has looked for so long.
func (m *cellMemory) mayRemove(now int64) bool { return m.unready != 0 && now-m.unready >= m.grace }

// isPlanned reports whether a batcher that was seen within the grace is to have its log open, by a plan that was.
func (m *cellMemory) isPlanned(log record.ShardID) bool {
	plan, found := m.plans[plannedShard{category: log.Category(), shard: uint32(log.Logical())}]
	if !found {
		return false
	}
	own, seen := m.batchers[log.Writer()]
	// Its place is counted among those of the last list: a batcher that is missing there for a moment could only come before it.
	return seen && affinity.IsAmong(affinity.KeyOf(log.Category(), uint32(log.Logical())), own.hash, m.present, int(plan.logs))
}
