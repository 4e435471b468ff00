package controlplane

import (
	"slices"
	"time"
)

// slotTable assigns writer slots. It is a plain state machine.
//
// A slot is free, or it has a holder: the member id that got it last and may still use it, or may come back for it. Free slots
// are given out lowest first, so that a cell whose processes leave properly uses few slots, and has few logs. If no slot is free,
// an expired holder loses its slot, the one that expired first.
type slotTable struct {
	max uint32
	// next is the lowest slot that was never given out; freed slots are in free, ascending.
	next    uint32
	free    []uint32
	holders map[uint32]*slotHolder
	byID    map[string]uint32
}

// slotHolder is the id that a slot is kept for.
type slotHolder struct {
	id string
	// usable is the time from which another id may get the slot; zero while the lease lives.
	usable time.Time
}

func newSlots(maxSlot uint32) *slotTable {
	return &slotTable{max: maxSlot, next: 1, holders: make(map[uint32]*slotHolder), byID: make(map[string]uint32)}
}

// assignSlot restores the stored slot of an id at a restart. It must be called before takeSlot.
func (s *slotTable) assignSlot(slot uint32, id string) {
	s.holders[slot] = &slotHolder{id: id}
	s.byID[id] = slot
}

// takeSlot gives id a slot until expireSlot or freeSlot; an id that has a slot keeps it. When all are taken, it returns 0 and the
// time when the next one may be taken, which is zero while all leases live.
func (s *slotTable) takeSlot(id string, now time.Time) (uint32, time.Time) {
	if slot, ok := s.byID[id]; ok {
		s.holders[slot].usable = time.Time{}
		return slot, time.Time{}
	}
	slot, wait := s.findSlot(now)
	if slot != 0 {
		s.assignSlot(slot, id)
	}
	return slot, wait
}

// findSlot returns a slot without a holder, taking one from an expired holder if it must.
func (s *slotTable) findSlot(now time.Time) (uint32, time.Time) {
	for s.next <= s.max && s.holders[s.next] != nil {
		s.next++ // restored at the restart
	}
	if len(s.free) > 0 {
		lowest := s.free[0]
		s.free = slices.Delete(s.free, 0, 1)
		return lowest, time.Time{}
	}
	if s.next <= s.max {
		s.next++
		return s.next - 1, time.Time{}
	}
	// All slots have holders. This is rare, so a scan of all holders is good enough.
	var slot uint32
	var usable time.Time
	for candidate, h := range s.holders {
		if !h.usable.IsZero() && (slot == 0 || h.usable.Before(usable)) {
			slot, usable = candidate, h.usable
		}
	}
	if slot == 0 || usable.After(now) {
		return 0, usable
	}
	delete(s.byID, s.holders[slot].id)
	delete(s.holders, slot)
	return slot, time.Time{}
}

// expireSlot ends an id's lease: from usable on, another id may get its slot.
func (s *slotTable) expireSlot(id string, usable time.Time) {
	if slot, ok := s.byID[id]; ok {
		s.holders[slot].usable = usable
	}
}

// freeSlot frees an id's slot, which the id does not use any more. It returns 0 for an id without one.
func (s *slotTable) freeSlot(id string) uint32 {
	slot, ok := s.byID[id]
	if !ok {
		return 0
	}
	delete(s.byID, id)
	delete(s.holders, slot)
	if slot < s.next {
		at, _ := slices.BinarySearch(s.free, slot)
		s.free = slices.Insert(s.free, at, slot)
	}
	return slot
}
