package spool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/scribed/spool/layout"
)

// errNoRoom says that a rewritten segment does not fit under MaxBytes.
var errNoRoom = errors.New("no space under MaxBytes to rewrite a segment")

// rewriteFailed rewrites the segments whose sync failed, so that their held records become durable.
func (s *Spool) rewriteFailed() error {
	var errs []error
	s.mu.Lock()
	var lost []*segmentFile
	for _, g := range s.mu.segments {
		if g.state == failed && g.held > 0 && !g.busy {
			g.busy = true
			lost = append(lost, g)
		}
	}
	s.mu.Unlock()
	for _, g := range lost {
		err := s.rewriteSegments([]*segmentFile{g})
		if err == nil {
			continue
		}
		errs = append(errs, err)
		s.mu.Lock()
		s.mu.failures++ // waiting Sync calls return ErrFailed
		s.broadcastChange()
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Segments are rewritten when the spool is half full, or has more than manySegments. Before that, the space of finished records
// is reclaimed when the rest of their segment is finished.
const manySegments = 256

// rewriteSome rewrites the segments whose rewriting frees the most space, and those with a damaged footer.
func (s *Spool) rewriteSome() error {
	for {
		s.mu.Lock()
		free := s.cfg.MaxBytes - s.mu.used
		var chosen []*segmentFile
		if i := slices.IndexFunc(s.mu.segments, func(g *segmentFile) bool {
			return g.needsRewrite && g.state == sealed && !g.busy && g.held > 0 && g.live+rewriteOverhead < free
		}); i >= 0 {
			chosen = slices.Clone(s.mu.segments[i : i+1])
		} else if s.mu.used > s.cfg.MaxBytes/2 || s.mu.diskFull || len(s.mu.segments) > manySegments {
			from, to := chooseNeighbours(s.mu.segments, s.cfg.SegmentBytes, free)
			chosen = slices.Clone(s.mu.segments[from:to])
		}
		for _, g := range chosen {
			g.busy = true
		}
		s.mu.Unlock()
		if len(chosen) == 0 {
			return nil
		}
		if err := s.rewriteSegments(chosen); errors.Is(err, errNoRoom) {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.reclaimSegments(false); err != nil {
			return err
		}
		select {
		case <-s.stop:
			return nil
		default:
		}
	}
}

const (
	// fewSegments is how many small neighbours are merged even if that frees little space.
	fewSegments = 8
	// rewriteOverhead estimates the bytes of a rewritten segment besides its records.
	rewriteOverhead = 1 << 10
)

// chooseNeighbours picks neighbours to merge into one segment: those that free the largest share, at least half, or else many
// small ones. They must be neighbours, since the replacement covers all numbers from the first to the last. from = to: none.
func chooseNeighbours(segments []*segmentFile, segmentBytes, free int64) (from, to int) {
	best := 0.5
	for i := range segments {
		var charge, live int64
		small := 0
		for j := i; j < len(segments); j++ {
			g := segments[j]
			if g.state != sealed || g.busy || g.held == 0 {
				break
			}
			charge += g.charge
			live += g.live + g.live/8 // and its share of the footer
			if g.charge < segmentBytes/fewSegments {
				small++
			}
			if live+rewriteOverhead > min(segmentBytes*3/4, free) {
				break
			}
			if share := float64(charge-live-rewriteOverhead) / float64(charge); share >= best {
				best, from, to = share, i, j+1
			}
			if to == 0 && small >= fewSegments && small >= (j-i+1)*3/4 {
				from, to = i, j+1
			}
		}
	}
	return from, to
}

// rewriteSource is a part that is rewritten, as it was when the rewrite began.
type rewriteSource struct {
	part    *segmentPart
	entries []layout.IndexEntry // entries to keep
	done    positionSet
	amount  Amount // finished by then
}

// rewriteSegments writes the held records of neighbours to one file of a higher generation, which replaces them: it is written,
// synced and renamed, and the folder is synced. Claims and references stay valid. The segments were marked busy.
func (s *Spool) rewriteSegments(from []*segmentFile) (err error) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range from {
			g.busy = false
		}
	}()
	s.mu.Lock()
	for _, g := range from {
		g.readers++
	}
	s.mu.Unlock()
	defer s.unpinSegments(from...)

	sources, err := s.collectSources(from)
	if err != nil {
		return err
	}
	w := &segmentRewrite{s: s, sources: sources, kept: map[string][]layout.IndexEntry{}}
	w.id = layout.SegmentID{First: from[0].id.First, Last: from[len(from)-1].id.Last}
	for _, g := range from {
		w.id.Generation = max(w.id.Generation, g.id.Generation+1)
		w.encrypted = w.encrypted || g.encrypted
	}
	w.path = s.fs.PathJoin(s.cfg.Dir, w.id.Name())
	if err := w.reserveSpace(); err != nil {
		return err
	}
	size, err := w.writeSegment(from)
	if err != nil {
		w.discardRewrite()
		return fmt.Errorf("rewrite %d segments as %s: %w", len(from), w.id.Name(), err)
	}
	w.replaceSegments(from, size)
	return nil
}

// collectSources collects the held records of segments.
func (s *Spool) collectSources(from []*segmentFile) ([]*rewriteSource, error) {
	var out []*rewriteSource
	for _, g := range from {
		s.mu.Lock()
		parts := slices.Clone(g.parts)
		s.mu.Unlock()
		for _, p := range parts {
			s.mu.Lock()
			held := p.held.Records
			s.mu.Unlock()
			var entries []layout.IndexEntry
			if held > 0 {
				var err error
				if entries, err = s.readIndex(p, g); err != nil {
					return nil, err
				}
			}
			s.mu.Lock()
			src := &rewriteSource{part: p, done: slices.Clone(p.done), amount: p.finished}
			s.mu.Unlock()
			for i := range entries {
				if !src.done.contains(entries[i].Position) {
					src.entries = append(src.entries, entries[i])
				}
			}
			out = append(out, src)
		}
	}
	return out, nil
}

// segmentRewrite is a file that will replace others.
type segmentRewrite struct {
	s       *Spool
	id      layout.SegmentID
	path    string // with tempSuffix until the file is complete
	sources []*rewriteSource
	charge  int64
	kept    map[string][]layout.IndexEntry // by category, as they are in the new file
	file    vfs.File
	renamed bool
	// encrypted: records may be encrypted. They are copied as they are, so that no key is needed.
	encrypted bool
	foot      *layout.Footer
	out       []byte
	end       int64 // end of the written bytes and of out
}

// reserveSpace charges the whole file against MaxBytes.
func (w *segmentRewrite) reserveSpace() error {
	w.charge = layout.SegmentHeaderLen + layout.TrailerLen
	for _, src := range w.sources {
		for i := range src.entries {
			w.charge += layout.Padded(int64(src.entries[i].Size)) + layout.MaxEntryLen
		}
		w.charge += layout.CategoryLen + int64(len(src.part.cat.name))
	}
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.used+w.charge > s.cfg.MaxBytes {
		return errNoRoom
	}
	s.mu.used += w.charge
	s.mu.rewriting += w.charge
	return nil
}

// discardRewrite discards the file.
func (w *segmentRewrite) discardRewrite() {
	s := w.s
	if w.file != nil {
		_ = w.file.Close() // no longer needed
	}
	g := &segmentFile{id: w.id, path: w.path + tempSuffix, charge: w.charge}
	if w.renamed {
		g.path = w.path
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rewriting -= w.charge
	s.discardSegment(g) // charged until it is removed
}

const rewriteBuffer = 1 << 20

// writeSegment writes the file, renames it into place, and returns its length.
func (w *segmentRewrite) writeSegment(from []*segmentFile) (size int64, err error) {
	s := w.s
	if w.file, err = s.fs.Create(w.path+tempSuffix, diskCategory); err != nil {
		return 0, err
	}
	if err := w.file.Preallocate(0, w.charge); err != nil && !cannotPreallocate(err) {
		return 0, fmt.Errorf("preallocate %d bytes: %w", w.charge, err)
	}
	w.appendBytes(layout.AppendSegmentHeader(nil, &layout.SegmentHeader{SegmentID: w.id, Created: s.clock().UnixMicro()}, w.encrypted))
	for _, g := range from {
		if err := w.copySegment(g); err != nil {
			return 0, err
		}
	}
	f := &layout.Footer{SegmentID: w.id, DataEnd: w.end, Offset: w.end, Encrypted: w.encrypted}
	for _, name := range slices.Sorted(maps.Keys(w.kept)) {
		f.Categories = append(f.Categories, layout.NewCategory(name, w.kept[name]))
	}
	w.appendBytes(layout.AppendFooter(nil, f, func(i int) []layout.IndexEntry { return w.kept[f.Categories[i].Name] }))
	if err := w.flushBuffer(); err != nil {
		return 0, err
	}
	if err := w.file.Sync(); err != nil {
		return 0, fmt.Errorf("sync: %w", err)
	}
	if t, ok := w.file.(interface{ Truncate(size int64) error }); ok {
		_ = t.Truncate(w.end) // frees the excess preallocated space
	}
	err = w.file.Close()
	w.file = nil
	if err != nil {
		return 0, err
	}
	if err := s.fs.Rename(w.path+tempSuffix, w.path); err != nil {
		return 0, err
	}
	w.renamed = true
	if err := durable.SyncFolder(s.fs, s.cfg.Dir); err != nil {
		// After a crash the new file may be there or not. The old files stay in use, and this one is removed.
		return 0, fmt.Errorf("sync the folder: %w", err)
	}
	w.foot = f
	return w.end, nil
}

func (w *segmentRewrite) appendBytes(b []byte) {
	w.out = append(w.out, b...)
	w.end += int64(len(b))
}

func (w *segmentRewrite) flushBuffer() error {
	if _, err := w.file.WriteAt(w.out, w.end-int64(len(w.out))); err != nil {
		return err
	}
	w.out = w.out[:0]
	return nil
}

// copySegment copies the kept records of a segment, in order.
func (w *segmentRewrite) copySegment(g *segmentFile) error {
	var picks []recordPick
	bySource := map[layout.Position]*rewriteSource{}
	for _, src := range w.sources {
		if src.part.seg != g {
			continue
		}
		for _, e := range src.entries {
			picks = append(picks, recordPick{seg: g, name: src.part.cat.name, entry: e})
			bySource[e.Position] = src
		}
	}
	if len(picks) == 0 {
		return nil
	}
	slices.SortFunc(picks, func(a, b recordPick) int { return int(int64(a.entry.Offset) - int64(b.entry.Offset)) })
	r, err := w.s.openReader(g)
	if err != nil {
		return err
	}
	defer r.close()
	var buf []byte
	for len(picks) > 0 {
		n := 1
		for n < len(picks) && int64(picks[n].entry.Offset)+int64(picks[n].entry.Size)-int64(picks[0].entry.Offset) <= rewriteBuffer {
			n++
		}
		if buf, err = w.copyRecords(r, picks[:n], buf, bySource); err != nil {
			return err
		}
		picks = picks[n:]
	}
	return nil
}

// copyRecords copies records that are read at once.
func (w *segmentRewrite) copyRecords(r *segmentReader, picks []recordPick, buf []byte, sources map[layout.Position]*rewriteSource) ([]byte, error) {
	first, last := &picks[0].entry, &picks[len(picks)-1].entry
	from, n := int64(first.Offset), int64(last.Offset)+int64(last.Size)-int64(first.Offset)
	if int64(cap(buf)) < n {
		buf = make([]byte, max(n, rewriteBuffer))
	}
	b := buf[:n]
	if got, err := r.ReadAt(b, from); errors.Is(err, io.EOF) {
		clear(b[got:])
	} else if err != nil {
		return buf, fmt.Errorf("read %d bytes at %d of %s: %w", n, from, r.g.path, err)
	}
	for _, p := range picks {
		raw := b[int64(p.entry.Offset)-from:][:p.entry.Size]
		if _, _, err := checkRecord(p.name, &p.entry, raw); err != nil {
			// The record is finished and not in the new file, as if it had been finished when the rewrite began.
			src := sources[p.entry.Position]
			w.s.loseRecord(damagedRecord{recordPick: p, raw: raw, err: err}, src.part)
			src.done.addRange(p.entry.Position, p.entry.Position+1)
			src.amount.plus(amountOf(p.name, &p.entry))
			continue
		}
		e := p.entry
		e.Offset = uint32(w.end)
		w.kept[p.name] = append(w.kept[p.name], e)
		w.appendBytes(raw)
		w.appendBytes(make([]byte, layout.Padded(int64(len(raw)))-int64(len(raw))))
	}
	if len(w.out) >= rewriteBuffer {
		return buf, w.flushBuffer()
	}
	return buf, nil
}

// replaceSegments replaces the old segments by the new file.
func (w *segmentRewrite) replaceSegments(from []*segmentFile, size int64) {
	s := w.s
	g := &segmentFile{id: w.id, path: w.path, state: sealed, charge: size, capacity: size, end: w.foot.DataEnd, synced: w.foot.DataEnd, footerAt: w.foot.Offset, footerSum: w.foot.Sum, encrypted: w.encrypted}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.rewriting -= w.charge
	s.mu.used += size - w.charge
	merged := map[string]*segmentPart{}
	successor := map[*segmentPart]*segmentPart{}
	for i := range w.foot.Categories {
		c := &w.foot.Categories[i]
		p := &segmentPart{cat: &categoryRecords{name: c.Name}, seg: g, IndexSummary: c.IndexSummary}
		merged[c.Name], g.parts = p, append(g.parts, p)
	}
	for _, src := range w.sources {
		old := src.part
		p := merged[old.cat.name]
		if p == nil {
			continue // all its records were finished
		}
		successor[old] = p
		p.plus(old.recordSums)
		p.finished.plus(old.finished)
		p.finished.minus(src.amount)
		p.done = p.done.union(old.done.without(src.done))
		p.taken = p.taken.union(old.taken.without(src.done))
	}
	for at, c := range s.mu.claims {
		if p := successor[c.part]; p != nil {
			c.part = p
			s.mu.claims[at] = c
		}
	}
	at := slices.Index(s.mu.segments, from[0])
	for _, old := range from {
		for _, p := range old.parts {
			s.mu.detachPart(p)
			s.mu.indexes.Remove(p)
		}
		s.mu.unsynced -= old.unsynced()
		old.firstUnsynced = 0 // concurrent readers may still use the chunks
		s.discardSegment(old)
	}
	for _, p := range g.parts {
		s.mu.attachPart(p)
	}
	s.mu.segments = slices.Replace(s.mu.segments, at, at+len(from), g)
	s.mu.changes++ // the state lists the old segments
	s.broadcastChange()
	s.metrics.rewritten.Inc()
	s.metrics.rewrittenBytes.Add(float64(size))
}
