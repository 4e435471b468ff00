package spool

import (
	"context"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// diskCategory labels the spool's writes in Pebble's disk statistics.
const diskCategory = vfs.DiskWriteCategory("scribe-spool")

// Sync returns when everything appended before the call is on disk. Concurrent calls share one fsync (group commit). The error is
// ErrFailed, ErrClosed, or that of ctx.
//
// When a sync fails, all waiting calls return ErrFailed, except those whose records have reached the disk in another file by the
// time they check. The unsynced records are still held, and are rewritten from memory to another file; until that is done, Sync
// waits for it, and returns ErrFailed if it fails.
func (s *Spool) Sync(ctx context.Context) error { return s.waitDurable(ctx, true) }

func (s *Spool) waitDurable(ctx context.Context, open bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	target, failures := s.mu.sequence, s.mu.failures
	if open && s.calls.Closed() {
		return ErrClosed
	}
	if s.isDurable(target) {
		return ctx.Err()
	}
	s.metrics.syncWaits.Inc()
	for {
		changed := s.mu.changed
		s.mu.Unlock()
		s.kickSync.WakeUp()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		s.mu.Lock()
		switch {
		case s.isDurable(target):
			return nil
		case s.mu.failures != failures:
			return ErrFailed
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// isDurable reports whether every Append up to a sequence number is on disk. The mutex is held.
func (s *Spool) isDurable(sequence uint64) bool {
	for _, g := range slices.Backward(s.mu.segments) {
		if g.firstUnsynced != 0 && g.firstUnsynced <= sequence {
			return false
		}
	}
	return true
}

// syncLoop is the goroutine that syncs segments: when a call waits, and otherwise SyncInterval after an append.
func (s *Spool) syncLoop() {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	armed := false
	for {
		select {
		case <-s.stop:
			return
		case <-s.armSync:
			if !armed {
				timer.Reset(s.cfg.SyncInterval)
				armed = true
			}
			continue
		case <-timer.C:
			armed = false
		case <-s.kickSync:
		}
		s.syncRound()
	}
}

// syncRound syncs everything appended so far.
func (s *Spool) syncRound() {
	type target struct {
		g    *segmentFile
		file vfs.File
		end  int64
		// sequence is the number of the last append before end.
		sequence uint64
	}
	var targets []target
	s.mu.Lock()
	for _, g := range s.mu.segments {
		if g.firstUnsynced != 0 && g.state != failed {
			g.readers++ // the keeper removes segments without held records
			targets = append(targets, target{g, g.file, g.end, g.lastAppend})
		}
	}
	s.mu.Unlock()
	for _, t := range targets {
		start := time.Now()
		err := t.file.SyncData()
		s.metrics.syncSeconds.Observe(time.Since(start).Seconds())
		s.mu.Lock()
		wanted := t.g.firstUnsynced != 0
		switch {
		case !wanted:
		case err != nil:
			s.failSegment(t.g)
		default:
			s.noteSynced(t.g, t.end, t.sequence)
		}
		s.broadcastChange()
		s.mu.Unlock()
		if err != nil && wanted {
			s.logFailedSync(t.g, err)
		}
		s.unpinSegments(t.g)
	}
	if len(targets) == 0 {
		return
	}
	// The keeper handles segments that wait for their footer, or that failed.
	s.kickKeeper.WakeUp()
}

// noteSynced records how far a segment is on disk. The mutex is held.
func (s *Spool) noteSynced(g *segmentFile, end int64, sequence uint64) {
	s.mu.unsynced -= end - g.synced
	g.synced = end
	if g.firstUnsynced = 0; g.end > end {
		g.firstUnsynced = sequence + 1
		s.armSync.WakeUp()
	}
	if g.state != active { // the holder of the tail recycles the chunks of an active segment
		g.recycleChunks(&s.chunks)
	}
}

// failSegment abandons a segment after a failed sync: it is unknown which bytes are on disk, and a second sync would report
// success. It keeps its chunks, from which the keeper rewrites its held records to another file. The mutex is held.
func (s *Spool) failSegment(g *segmentFile) {
	if s.mu.active == g {
		s.mu.active = nil
	}
	g.state, g.names = failed, nil
	s.mu.failures++
	s.metrics.syncFailures.Inc()
	s.kickKeeper.WakeUp()
}

// logFailedSync logs that a segment was abandoned. The mutex is not held.
func (s *Spool) logFailedSync(g *segmentFile, err error) {
	s.logger.Error("sync failed: rewriting the segment's records to another file", "segment", g.path, "error", err)
	if noSpace(err) {
		s.outOfSpace(err)
	}
}
