package spool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"scribe/internal/base/durable"
	"scribe/scribed/spool/layout"
)

// retryInterval is how long the keeper waits before it retries a failed task.
const retryInterval = time.Second

// keepLoop is the goroutine that seals, rewrites and removes segments, saves the state, and maintains the ballast and a spare
// segment. It works when it is woken and when something is due; an idle spool has no timer.
func (s *Spool) keepLoop() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var retry time.Time // when failed tasks are retried; zero = nothing failed
	for {
		if now := time.Now(); !now.Before(retry) {
			retry = time.Time{}
			if failed := s.doHousekeeping(now); failed {
				retry = now.Add(retryInterval)
			}
		}
		timer.Stop()
		if at := s.nextWork(retry); !at.IsZero() {
			timer.Reset(time.Until(at))
		}
		select {
		case <-s.stop:
			return
		case <-s.kickKeeper:
		case <-timer.C:
		}
	}
}

// nextWork is when the keeper has work without being woken; zero = never.
func (s *Spool) nextWork(retry time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := retry
	if !s.mu.stateDirty.IsZero() && at.IsZero() {
		at = s.mu.stateDirty.Add(s.cfg.StateInterval)
	}
	if s.mu.diskFull && at.IsZero() {
		at = time.Now().Add(retryInterval)
	}
	return at
}

// doHousekeeping runs all due tasks, and reports whether any failed.
func (s *Spool) doHousekeeping(now time.Time) (failed bool) {
	s.mu.Lock()
	due := !s.mu.stateDirty.IsZero() && now.Sub(s.mu.stateDirty) >= s.cfg.StateInterval
	full := s.mu.diskFull
	s.mu.Unlock()
	note := func(what string, err error) {
		if err == nil {
			return
		}
		failed = true
		if noSpace(err) {
			s.outOfSpace(err)
		}
		s.logger.Error("housekeeping failed: retrying", "task", what, "error", err)
	}
	note("seal", s.sealAll())
	note("rescue", s.rewriteFailed())
	note("reclaim", s.reclaimSegments(due))
	if full {
		note("ballast", s.restoreBallast())
	}
	note("rewrite", s.rewriteSome())
	s.prepareSpare()
	return failed
}

// sealAll seals every segment that waits for its footer and whose data is on disk.
func (s *Spool) sealAll() error {
	s.mu.Lock()
	var ready []*segmentFile
	for _, g := range s.mu.segments {
		if g.held == 0 && g.firstUnsynced != 0 && g.state != active {
			// All its records are finished, so it need not be synced.
			s.mu.unsynced -= g.unsynced()
			g.synced, g.firstUnsynced = g.end, 0
			s.broadcastChange()
		}
		if g.state != sealing {
			continue
		}
		if g.firstUnsynced == 0 {
			ready = append(ready, g)
		} else {
			s.kickSync.WakeUp() // the syncer wakes the keeper
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, g := range ready {
		errs = append(errs, s.sealSegment(g))
	}
	return errors.Join(errs...)
}

// sealSegment writes the footer of a segment whose data is on disk, and syncs it.
func (s *Spool) sealSegment(g *segmentFile) error {
	s.mu.Lock()
	// A segment without held records is removed without a footer.
	empty := g.held == 0
	f, parts := footerOf(g)
	stained := g.hasLeftovers
	s.mu.Unlock()
	var err error
	size := f.Offset
	if !empty {
		if stained {
			f.Offset, err = g.footerOffset()
		}
		if err == nil {
			b := layout.AppendFooter(nil, f, func(i int) []layout.IndexEntry { return parts[i].entries })
			size = f.Offset + int64(len(b))
			if _, err = g.file.WriteAt(b, f.Offset); err != nil && noSpace(err) {
				return fmt.Errorf("write the footer of %s: %w", g.path, err)
			}
		}
		if err == nil {
			err = g.file.Sync()
		}
	}
	if err != nil {
		err = fmt.Errorf("seal %s: %w", g.path, err)
		s.mu.Lock()
		s.failSegment(g)
		s.broadcastChange()
		s.mu.Unlock()
		s.logFailedSync(g, err)
		return nil // rewriteFailed handles it now
	}
	if t, ok := g.file.(interface{ Truncate(size int64) error }); ok {
		_ = t.Truncate(size) // frees the preallocated space; a failure only costs space
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.footerAt, g.footerSum = f.Offset, f.Sum
	s.mu.changes++ // the state must learn the sum of this footer
	s.endSealing(g, size)
	for i, p := range parts {
		p.IndexSummary = f.Categories[i].IndexSummary // with the index's place
		entries := p.entries
		p.entries = nil
		if p.held.Records > 0 {
			s.mu.indexes.putIndex(p, entries)
		}
	}
	s.metrics.sealed.Inc()
	return nil
}

// endSealing marks a segment as sealed, with a file of size bytes. The mutex is held.
func (s *Spool) endSealing(g *segmentFile, size int64) {
	g.state, g.names, g.chunks = sealed, nil, nil
	s.mu.used += size - g.charge
	g.charge = size
	if g.readers == 0 && g.file != nil {
		_ = g.file.Close() // already synced
		g.file = nil
	} // else it stays open until it is unpinned or removed
}

// footerOf builds the footer of a segment that is no longer appended to; parts are in its order. The mutex is held.
func footerOf(g *segmentFile) (f *layout.Footer, parts []*segmentPart) {
	parts = slices.Clone(g.parts)
	slices.SortFunc(parts, func(a, b *segmentPart) int { return strings.Compare(a.cat.name, b.cat.name) })
	f = &layout.Footer{SegmentID: g.id, DataEnd: g.end, Offset: layout.Padded(g.end), Encrypted: g.encrypted}
	for _, p := range parts {
		f.Categories = append(f.Categories, layout.FooterCategory{Name: p.cat.name, IndexSummary: p.IndexSummary})
	}
	return f, parts
}

// footerOffset is the offset of a footer that must end the file, although the file may have bytes after its records.
func (g *segmentFile) footerOffset() (int64, error) {
	info, err := g.file.Stat()
	if err != nil {
		return 0, err
	}
	return layout.Padded(max(g.end, info.Size())), nil
}

// reclaimSegments removes segments without held records, and saves the state if it is due or if segments are to be removed. The
// state is saved first: if a crash undoes the removal, it says that their records were done; if not, it says that the segments
// are not missing.
func (s *Spool) reclaimSegments(due bool) error {
	s.mu.Lock()
	done := func(g *segmentFile) bool {
		return g.held == 0 && !g.busy && g.readers == 0 && (g.state == sealed || g.state == failed)
	}
	// Not those that become empty later: the state would not say so.
	goes := slices.DeleteFunc(slices.Clone(s.mu.segments), func(g *segmentFile) bool { return !done(g) })
	save := due && (s.mu.changes != s.mu.stateSaved || s.mu.stateBroken) || len(goes) > 0
	s.mu.Unlock()
	if save {
		if err := s.saveState(); err != nil {
			return errors.Join(fmt.Errorf("save the state: %w", err), s.removeTrash())
		}
	}
	s.mu.Lock()
	s.mu.segments = slices.DeleteFunc(s.mu.segments, func(g *segmentFile) bool {
		if !done(g) || !slices.Contains(goes, g) {
			return false
		}
		s.mu.unsynced -= g.unsynced()
		g.chunks, g.firstUnsynced = nil, 0
		for _, p := range g.parts {
			s.mu.indexes.Remove(p)
		}
		s.discardSegment(g)
		s.metrics.reclaimed.Inc()
		return true
	})
	s.mu.Unlock()
	return s.removeTrash()
}

// removeTrash removes the files of discarded segments that are no longer pinned. Only one goroutine runs it at a time. A file
// that cannot be removed is retried later, and stays charged until then.
func (s *Spool) removeTrash() error {
	s.mu.Lock()
	goes := slices.DeleteFunc(slices.Clone(s.mu.trash), func(g *segmentFile) bool { return g.readers > 0 })
	s.mu.Unlock()
	if len(goes) == 0 {
		return nil
	}
	var errs []error
	var freed int64
	gone := map[*segmentFile]bool{}
	for _, g := range goes {
		if g.file != nil {
			_ = g.file.Close() // no longer needed
			g.file = nil
		}
		if err := s.fs.Remove(g.path); err != nil && !isNotExist(err) {
			errs = append(errs, fmt.Errorf("remove %s: %w", g.path, err))
			continue
		}
		freed += g.charge
		gone[g] = true
	}
	if err := durable.SyncFolder(s.fs, s.cfg.Dir); err != nil {
		errs = append(errs, fmt.Errorf("sync the folder: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.trash = slices.DeleteFunc(s.mu.trash, func(g *segmentFile) bool { return gone[g] })
	s.mu.used -= freed
	s.broadcastChange()
	return errors.Join(errs...)
}

// prepareSpare creates the next segment before it is needed. If that fails, an append creates it, and returns the error.
func (s *Spool) prepareSpare() {
	s.mu.Lock()
	g := s.mu.active
	want := !s.calls.Closed() && s.mu.spare == nil && g != nil && g.end > g.capacity*3/4 && s.mu.used+s.cfg.SegmentBytes+s.rewriteHeadroom() <= s.cfg.MaxBytes
	s.mu.Unlock()
	if !want {
		return
	}
	g, err := s.createSegment(0)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Segments are used in order of their numbers.
	if s.calls.Closed() || s.mu.next != g.id.First+1 {
		s.discardSegment(g)
		return
	}
	s.mu.spare = g
}
