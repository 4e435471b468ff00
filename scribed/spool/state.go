package spool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/scribed/spool/layout"
)

// stateSlots is the state file. A slot is written only while the other one is valid, so that one survives a crash.
type stateSlots struct {
	fs   vfs.FS
	dir  string
	slot int64
	file vfs.File // nil: the next save creates a new file
	// generation is the generation of the slot written last.
	generation uint64
}

// slotBytes is the length of a slot for a spool of maxBytes. State that does not fit is left out, see layout.AppendSlot.
func slotBytes(maxBytes int64) int64 { return max(layout.MinStateSlot, min(maxBytes/64, 4<<20)) }

func (f *stateSlots) path() string { return f.fs.PathJoin(f.dir, stateName) }

// readState reads the state file, and keeps it open if its slots have the right length.
func (f *stateSlots) readState() (*layout.StateFile, error) {
	file, err := f.fs.OpenReadWrite(f.path(), diskCategory)
	if err != nil {
		return nil, err
	}
	st, err := layout.ReadState(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if st.State != nil {
		f.generation = st.State.Generation
	}
	if st.Slot != f.slot {
		return st, file.Close()
	}
	f.file = file
	return st, nil
}

// saveState writes the state to the slot that does not hold the newest one. After a failed write or sync the file is replaced.
func (f *stateSlots) saveState(st *layout.SpoolState) (fitted bool, err error) {
	st.Generation = f.generation + 1
	b, fitted := layout.AppendSlot(nil, st, f.slot)
	at := layout.StateHeaderLen + int64(st.Generation%2)*f.slot
	if f.file == nil {
		err = f.createFile(b, at)
	} else {
		if _, err = f.file.WriteAt(b, at); err == nil {
			err = f.file.SyncData()
		}
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}
	if err == nil {
		f.generation = st.Generation
	}
	return fitted, err
}

// createFile writes a new file with one slot, and replaces the old one with it.
func (f *stateSlots) createFile(b []byte, at int64) error {
	temp := f.path() + tempSuffix
	file, err := f.fs.Create(temp, diskCategory)
	if err != nil {
		return err
	}
	err = file.Preallocate(0, layout.StateFileLen(f.slot))
	if cannotPreallocate(err) {
		err = nil
	}
	if err == nil {
		_, err = file.WriteAt(layout.AppendStateHeader(nil, f.slot), 0)
	}
	if err == nil {
		_, err = file.WriteAt(b, at)
	}
	if err == nil {
		// The file gets its full length, so that both slots can be read.
		_, err = file.WriteAt([]byte{0}, layout.StateFileLen(f.slot)-1)
	}
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = f.fs.Rename(temp, f.path())
	}
	if err == nil {
		err = durable.SyncFolder(f.fs, f.dir)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file = file
	return nil
}

func (f *stateSlots) close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// saveState saves the state. Only one call runs at a time.
func (s *Spool) saveState() error {
	st, changes := s.collectState()
	fitted, err := s.slots.saveState(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.mu.stateBroken = true
		return err
	}
	s.mu.stateBroken, s.mu.stateSaved, s.mu.stateDirty = false, changes, time.Time{}
	if s.mu.changes != changes {
		s.mu.stateDirty = time.Now()
	}
	s.metrics.stateSaves.Inc()
	if !fitted {
		s.metrics.stateCut.Inc()
	}
	return nil
}

func (s *Spool) collectState() (*layout.SpoolState, uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &layout.SpoolState{Next: s.mu.next, Saved: s.clock().UnixMicro()}
	for _, g := range s.mu.segments {
		e := layout.StateSegment{SegmentID: g.id, Footer: g.footerSum, Held: g.held}
		for _, p := range g.parts {
			if len(p.done) > 0 {
				e.Done = append(e.Done, layout.StateDone{Category: p.cat.name, Amount: layout.Amount(p.finished), Spans: slices.Clone(p.done)})
			}
		}
		st.Segments = append(st.Segments, e)
	}
	for name, a := range s.mu.dropped {
		st.Dropped = append(st.Dropped, layout.StateDropped{Category: name, Amount: layout.Amount(a)})
	}
	// The largest amounts are left out last.
	slices.SortFunc(st.Dropped, func(a, b layout.StateDropped) int { return int(b.Amount.Records - a.Amount.Records) })
	return st, s.mu.changes
}

// checkState logs the damage of the state that was read.
func (s *Spool) checkState(st *layout.StateFile) {
	for _, err := range st.Damage {
		s.logger.Error("damaged state file", "error", err)
		s.metrics.stateDamage.Inc()
	}
	if st.State == nil && len(st.Damage) > 0 {
		s.logger.Error("no valid state: forwarding every record of the segments again", "file", fmt.Sprint(s.slots.path()))
	}
}
