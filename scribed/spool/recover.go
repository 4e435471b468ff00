package spool

import (
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"scribe/scribed/keyring"
	"scribe/scribed/spool/layout"
)

// loadAtOnce is how many segments are loaded concurrently.
const loadAtOnce = 8

// recoverSegments builds the record book from the folder. It writes to no segment, and removes files that are not needed.
func (s *Spool) recoverSegments() error {
	in, err := readFolder(s.fs, s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, name := range in.temporary {
		if err := s.fs.Remove(s.fs.PathJoin(s.cfg.Dir, name)); err != nil {
			return err
		}
	}
	if err := s.quarantine.openFolder(); err != nil {
		s.logger.Error("reading the quarantine failed", "error", err)
	}
	s.slots = stateSlots{fs: s.fs, dir: s.cfg.Dir, slot: slotBytes(s.cfg.MaxBytes)}
	s.mu.used = layout.StateFileLen(s.slots.slot)
	st, err := s.readState(in)
	if err != nil {
		return err
	}
	found, err := s.loadAll(in.segments)
	if err != nil {
		return err
	}
	for _, l := range found {
		if err := s.enterSegment(l, st); err != nil {
			return err
		}
	}
	if err := s.checkKeys(); err != nil {
		return err
	}
	for _, l := range found {
		for _, d := range l.damage {
			if err := s.loseRange(l, &d); err != nil {
				return err
			}
		}
	}
	s.mu.next = 1
	if st != nil {
		s.mu.next = max(s.mu.next, st.Next)
		s.findMissing(in, st)
	}
	for _, ids := range [][]layout.SegmentID{in.segments, in.superseded} {
		for _, id := range ids {
			s.mu.next = max(s.mu.next, id.Last+1)
		}
	}
	s.keys.BeginRun(uint64(s.mu.next))
	return s.tidyFolder(in)
}

// checkKeys refuses a folder with records that wait and whose keys can't be used, before anything in it changes.
func (s *Spool) checkKeys() error {
	err := s.keys.Check(func(k keyring.Stored) bool {
		c := s.mu.categories[k.Category]
		return c != nil && slices.ContainsFunc(c.parts, func(p *segmentPart) bool {
			return p.seg.encrypted && uint64(p.LastPosition.Segment()) >= k.From && uint64(p.FirstPosition.Segment()) < k.To
		})
	})
	if err != nil {
		return fmt.Errorf("records that wait to be forwarded are encrypted, and their key can't be used; nothing was changed: %w: "+
			"start with --encryption-key-file and a file that still has the key by which it is wrapped, at least until they are forwarded (scribe agent --drain)", err)
	}
	return nil
}

// pruneKeys removes the keys of records that are gone.
func (s *Spool) pruneKeys() {
	err := s.keys.Prune(func(from, to uint64) bool {
		return slices.ContainsFunc(s.mu.segments, func(g *segmentFile) bool { return uint64(g.id.Last) >= from && uint64(g.id.First) < to })
	})
	if err != nil {
		s.logger.Error("removing the keys of records that are gone failed", "error", err)
	}
}

// readState returns nil if there is no valid state.
func (s *Spool) readState(in *folderListing) (*layout.SpoolState, error) {
	if !in.state {
		if len(in.segments) > 0 {
			s.logger.Error("missing state file: forwarding every record of the segments again")
		}
		return nil, nil
	}
	st, err := s.slots.readState()
	if err != nil {
		return nil, fmt.Errorf("the state: %w", err)
	}
	s.checkState(st)
	if st.State != nil {
		for _, d := range st.State.Dropped {
			s.mu.dropped[d.Category] = Amount(d.Amount)
		}
	}
	return st.State, nil
}

func (s *Spool) loadAll(ids []layout.SegmentID) ([]*loadedSegment, error) {
	found := make([]*loadedSegment, len(ids))
	var group errgroup.Group
	group.SetLimit(loadAtOnce)
	for i, id := range ids {
		group.Go(func() (err error) {
			found[i], err = loadSegment(s.fs, s.cfg.Dir, id)
			return err
		})
	}
	return found, group.Wait()
}

// enterSegment enters a loaded segment.
func (s *Spool) enterSegment(l *loadedSegment, st *layout.SpoolState) error {
	g := &segmentFile{id: l.id, path: l.path, state: sealed, charge: l.size, capacity: l.size, end: l.end, synced: l.end, encrypted: l.encrypted}
	s.mu.segments = append(s.mu.segments, g)
	s.mu.used += l.size
	if l.footer != nil {
		g.footerAt, g.footerSum = l.footer.Offset, l.footer.Sum
	} else if err := s.resumeSealing(g, l); err != nil {
		return err
	}
	done, err := l.finishedIn(st, func(c *loadedCategory) ([]layout.IndexEntry, error) { return l.readIndex(s.fs, c) })
	if err != nil {
		return fmt.Errorf("the index of %s: %w", l.path, err)
	}
	for i := range l.categories {
		c := &l.categories[i]
		p := &segmentPart{cat: &categoryRecords{name: c.Name}, seg: g, IndexSummary: c.IndexSummary, entries: c.entries}
		p.done, p.taken = done[i].spans, slices.Clone(done[i].spans)
		p.finished, p.held = done[i].amount, Amount(c.SumRecords())
		p.held.minus(p.finished)
		p.unclaimed = p.held
		g.parts = append(g.parts, p)
		s.mu.attachPart(p)
	}
	return nil
}

// resumeSealing makes a loaded segment without a footer follow the path of one that was just filled. It is synced, since the
// bytes that were read may be in memory only, and gets a footer after everything in the file.
func (s *Spool) resumeSealing(g *segmentFile, l *loadedSegment) (err error) {
	if g.file, err = s.fs.OpenReadWrite(l.path, diskCategory); err != nil {
		return err
	}
	g.state, g.hasLeftovers, g.synced = sealing, true, min(l.end, layout.SegmentHeaderLen)
	s.mu.sequence = 1
	g.firstUnsynced, g.lastAppend = 1, 1
	s.mu.unsynced += g.unsynced()
	s.kickKeeper.WakeUp()
	if len(l.categories) > 0 {
		s.logger.Info("recovered a segment without a footer", "segment", l.path, "bytes", l.end, "reason", l.footerErr)
		s.metrics.rebuilt.Inc()
	}
	if l.torn > 0 {
		s.logger.Warn("cutting the unsynced end of a segment after a crash", "segment", l.path, "bytes", l.torn)
		s.metrics.torn.Add(float64(l.torn))
	}
	return nil
}

// loseRange counts damage that was found by reading a segment.
func (s *Spool) loseRange(l *loadedSegment, d *foundDamage) error {
	loss := damageLoss{Segment: uint64(l.id.First), From: d.From, To: d.To, Records: -1, Err: fmt.Errorf("%s: %w", l.path, d.err)}
	var a Amount
	switch rec := d.record; {
	case rec == nil:
		a.Bytes = d.To - d.From
	case rec.Category == "": // damage of the file's header
		loss.Records = 0
	default:
		e := rec.Entry()
		a = amountOf(rec.Category, &e)
		loss.Segment = uint64(rec.Position.Segment())
		loss.Records, loss.Category, loss.Messages, loss.Bytes = 1, rec.Category, a.Messages, a.Bytes
	}
	f, err := s.fs.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	b := make([]byte, min(d.To-d.From, s.cfg.QuarantineBytes))
	if _, err := (salvageReader{f}).ReadAt(b, d.From); err != nil {
		return err
	}
	loss.QuarantineFile = s.keepDamaged(loss.Segment, d.FileRange, b)
	s.addLoss(&loss, a, true)
	s.logLoss(loss)
	return nil
}

// findMissing counts segments that have held records according to the state, but no file.
func (s *Spool) findMissing(in *folderListing, st *layout.SpoolState) {
	for i := range st.Segments {
		g := &st.Segments[i]
		if g.Held == 0 || slices.ContainsFunc(in.segments, func(id layout.SegmentID) bool { return id == g.SegmentID || id.Covers(g.SegmentID) }) {
			continue
		}
		l := damageLoss{Segment: uint64(g.First), Records: g.Held, Err: fmt.Errorf("%s: %w: the file is missing", g.Name(), layout.ErrDamaged)}
		s.addLoss(&l, Amount{Records: g.Held}, true)
		s.logLoss(l)
		s.mu.changes++
	}
}

// tidyFolder removes superseded files, and creates the ballast and the state if needed.
func (s *Spool) tidyFolder(in *folderListing) error {
	for _, id := range in.superseded {
		path := s.fs.PathJoin(s.cfg.Dir, id.Name())
		info, err := s.fs.Stat(path)
		if err != nil {
			return err
		}
		s.mu.used += info.Size()
		s.discardSegment(&segmentFile{id: id, path: path, charge: info.Size()})
	}
	if err := s.removeTrash(); err != nil {
		return err
	}
	s.pruneKeys()
	if err := s.makeBallast(); noSpace(err) {
		s.outOfSpace(err)
	} else if err != nil {
		return fmt.Errorf("the ballast: %w", err)
	}
	if s.slots.file == nil {
		if err := s.saveState(); noSpace(err) {
			s.outOfSpace(err)
		} else if err != nil {
			return fmt.Errorf("save the state: %w", err)
		}
	}
	return nil
}
