package spool

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/keyring"
	"scribe/scribed/spool/layout"
)

// Claim claims the oldest records of the category's backlog up to a position, inclusive, in order of append: about maxBytes of
// frames, and at least one record if there is any. Their data is read into buf, whose whole capacity is used, or into new memory
// if buf is too small; the caller owns both. Records found damaged are counted as lost, and left out. On an error nothing is
// claimed. An error of a key says nothing of the records: they can be claimed when it can be used again. Those whose key was deleted are
// counted as gone, and left out.
func (s *Spool) Claim(category string, maxBytes int, upTo Position, buf []byte) ([]ClaimedRecord, error) {
	if !s.calls.Enter() {
		return nil, ErrClosed
	}
	defer s.calls.Leave()
	for {
		s.mu.Lock()
		picks, need := s.mu.claimRecords(category, int64(maxBytes), upTo)
		pinned := s.pinSegments(picks)
		s.mu.Unlock()
		if need != nil {
			if err := s.loadIndex(need); err != nil {
				return nil, fmt.Errorf("spool: claim from %s: %w", category, err)
			}
			continue
		}
		if len(picks) == 0 {
			return nil, nil
		}
		out, err := s.readRecords(picks, buf)
		s.unpinSegments(pinned...)
		if err != nil {
			s.Release(refsOf(picks)...)
			return nil, fmt.Errorf("spool: claim from %s: %w", category, err)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}

func refsOf(picks []recordPick) []Ref {
	refs := make([]Ref, len(picks))
	for i := range picks {
		refs[i] = picks[i].recordRef()
	}
	return refs
}

// pinSegments pins the segments of records until unpinSegments. The mutex is held.
func (s *Spool) pinSegments(picks []recordPick) []*segmentFile {
	var pinned []*segmentFile
	for i := range picks {
		if g := picks[i].seg; len(pinned) == 0 || pinned[len(pinned)-1] != g {
			g.readers++
			pinned = append(pinned, g)
		}
	}
	return pinned
}

func (s *Spool) unpinSegments(pinned ...*segmentFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range pinned {
		if g.readers--; g.readers > 0 {
			continue
		}
		if g.gone || g.held == 0 {
			s.kickKeeper.WakeUp()
		} else if g.state == sealed && g.file != nil { // it was sealed while it was read
			_ = g.file.Close()
			g.file = nil
		}
	}
}

// segmentReader reads a segment's file. If a sync of the segment failed, bytes that may not be on disk are read from memory.
type segmentReader struct {
	s    *Spool
	g    *segmentFile
	file vfs.File
	own  bool
}

// openReader opens a pinned segment.
func (s *Spool) openReader(g *segmentFile) (*segmentReader, error) {
	s.mu.Lock()
	r := &segmentReader{s: s, g: g, file: g.file}
	s.mu.Unlock()
	if r.file == nil {
		f, err := s.fs.Open(g.path)
		if err != nil {
			return nil, err
		}
		r.file, r.own = f, true
	}
	return r, nil
}

// ReadAt implements io.ReaderAt.
func (r *segmentReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := salvageReader{r.file}.ReadAt(p, off)
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.g.state != failed {
		return n, err
	}
	for i := range r.g.chunks {
		c := &r.g.chunks[i]
		from, to := max(c.from, off), min(c.end(), off+int64(len(p)))
		if from >= to {
			continue
		}
		copy(p[from-off:to-off], c.buf[from-c.from:])
		if from-off <= int64(n) && to-off > int64(n) { // the chunk continues where the file ended, or failed
			if n = int(to - off); n == len(p) {
				err = nil
			}
		}
	}
	return n, err
}

func (r *segmentReader) close() {
	if r.own {
		_ = r.file.Close() // read only
	}
}

// maxGap is the largest gap between two records, in bytes, that is read along with them rather than skipped.
const maxGap = 4 << 10

// readGroup is a range of records that are read at once.
type readGroup struct {
	picks    []recordPick
	from, to int64
}

func groupPicks(picks []recordPick) (out []readGroup, total int64) {
	for i := range picks {
		g, e := picks[i].seg, &picks[i].entry
		from, to := int64(e.Offset), int64(e.Offset)+int64(e.Size)
		if n := len(out); n > 0 && out[n-1].picks[0].seg == g && from-out[n-1].to <= maxGap {
			total += to - out[n-1].to
			out[n-1].to, out[n-1].picks = to, picks[i-len(out[n-1].picks):i+1]
			continue
		}
		out = append(out, readGroup{picks: picks[i : i+1], from: from, to: to})
		total += to - from
	}
	return out, total
}

// readRecords reads and checks claimed records. Damaged ones are counted as lost; an error is one of the file system.
func (s *Spool) readRecords(picks []recordPick, buf []byte) (out []ClaimedRecord, err error) {
	parts, total := groupPicks(picks)
	if buf = buf[:cap(buf)]; int64(len(buf)) < total {
		buf = make([]byte, total)
	}
	out = make([]ClaimedRecord, 0, len(picks))
	var lost []damagedRecord
	var r *segmentReader
	defer func() {
		if r != nil {
			r.close()
		}
	}()
	for _, p := range parts {
		g := p.picks[0].seg
		if r == nil || r.g != g {
			if r != nil {
				r.close()
			}
			if r, err = s.openReader(g); err != nil {
				return nil, err
			}
		}
		b := buf[: p.to-p.from : p.to-p.from]
		buf = buf[len(b):]
		if n, err := r.ReadAt(b, p.from); errors.Is(err, io.EOF) {
			clear(b[n:]) // the file was truncated: missing bytes are damage
		} else if err != nil {
			return nil, fmt.Errorf("read %d bytes at %d of %s: %w", len(b), p.from, g.path, err)
		}
		for i := range p.picks {
			e := &p.picks[i].entry
			raw := b[int64(e.Offset)-p.from:][:e.Size:e.Size]
			h, data, err := checkRecord(p.picks[i].name, e, raw)
			if err == nil && h.Encrypted {
				if data, err = s.decryptRecord(r, e, &h, data, raw); isKeyTrouble(err) {
					return nil, err
				}
			}
			if err != nil {
				lost = append(lost, damagedRecord{recordPick: p.picks[i], raw: raw, err: err})
				continue
			}
			out = append(out, ClaimedRecord{Ref: p.picks[i].recordRef(), Messages: int(e.Messages), Data: data})
		}
	}
	for _, d := range lost {
		s.loseRecord(d, nil)
	}
	return out, nil
}

// checkRecord checks that raw is the record of an index entry, and returns its data as it is stored.
func checkRecord(name string, e *layout.IndexEntry, raw []byte) (h layout.RecordHeader, stored []byte, err error) {
	if h, err = layout.ParseRecordHeader(raw); err != nil {
		return h, nil, err
	}
	if h.Position != e.Position || h.Category != name || h.Size() != int64(e.Size) || h.Messages != e.Messages || h.Encrypted != e.Encrypted {
		return h, nil, fmt.Errorf("%w: another record stands here", layout.ErrDamaged)
	}
	stored, err = h.Data(raw)
	return h, stored, err
}

// decryptRecord decrypts the data of a record in place, where raw is the whole of it. What was not encrypted so is damage, and raw is as it was read.
func (s *Spool) decryptRecord(r *segmentReader, e *layout.IndexEntry, h *layout.RecordHeader, stored, raw []byte) ([]byte, error) {
	frame, err := s.keys.Decrypt(h.Category, stored, h.AppendBound(make([]byte, 0, layout.RecordHeaderLen+len(h.Category))))
	switch {
	case errors.Is(err, keyring.ErrNotAuthentic):
		_, _ = r.ReadAt(raw, int64(e.Offset)) // decrypting has overwritten it; without it, the quarantine has less to show
		return nil, fmt.Errorf("%w: %w", layout.ErrDamaged, err)
	case isKeyTrouble(err):
		s.metrics.keyFailures.Inc()
		return nil, fmt.Errorf("record %s in %s: %w", h.Position, r.g.path, err)
	}
	return frame, err
}

// isKeyTrouble reports whether an error says that a key can't be used now, so that nothing is known of the record.
func isKeyTrouble(err error) bool {
	return err != nil && !errors.Is(err, layout.ErrDamaged) && !errors.Is(err, keyring.ErrNotAuthentic) && !errors.Is(err, keyring.ErrDeleted)
}

// damagedRecord is a record that cannot be read, and the bytes that were read instead.
type damagedRecord struct {
	recordPick
	raw []byte
	err error
}

// loseRecord copies a damaged record to the quarantine, counts it as lost and finishes it, unless it is finished, so that it is not
// given out again. Without a part, the caller has claimed it; with one, another claimant may have.
func (s *Spool) loseRecord(d damagedRecord, p *segmentPart) {
	at, a := d.entry.Position, amountOf(d.name, &d.entry)
	l := damageLoss{
		Segment: uint64(at.Segment()), From: int64(d.entry.Offset), To: int64(d.entry.Offset) + int64(d.entry.Size), Records: 1,
		Category: d.name, Err: fmt.Errorf("record %s in %s: %w", at, d.seg.path, d.err),
	}
	if !errors.Is(d.err, keyring.ErrDeleted) { // nobody can ever read it
		l.QuarantineFile = s.keepDamaged(l.Segment, layout.FileRange{From: l.From, To: l.To}, d.raw)
	}
	s.mu.Lock()
	lost := true
	switch c, claimed := s.mu.claims[at]; {
	case claimed && p == nil:
		s.countLoss(&l, c.part, s.mu.finishClaim(at, c), true)
	case claimed:
		s.countLoss(&l, p, s.mu.loseClaim(at, c), false)
	case p == nil || p.done.contains(at):
		lost = false
	default:
		p.taken.addRange(at, at+1)
		p.done.addRange(at, at+1)
		s.mu.finishRecords(p, recordSums{held: a, unclaimed: a})
		s.countLoss(&l, p, a, true)
	}
	s.mu.Unlock()
	if lost {
		s.logLoss(l)
	}
}

// countLoss counts a loss whose record is finished. The mutex is held.
func (s *Spool) countLoss(l *damageLoss, p *segmentPart, a Amount, unclaimed bool) {
	l.Messages, l.Bytes = a.Messages, a.Bytes
	s.addLoss(l, a, unclaimed)
	s.offerReclaim(p.seg)
	s.markDirty()
}

// loadIndex reads the index of a part into the cache. A damaged index is rebuilt from the segment.
func (s *Spool) loadIndex(p *segmentPart) error {
	s.mu.Lock()
	g := p.seg
	if p.entries != nil || g.gone {
		s.mu.Unlock()
		return nil // another call loaded it, or the segment was replaced
	}
	g.readers++
	s.mu.Unlock()
	defer s.unpinSegments(g)
	entries, err := s.readIndex(p, g)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.entries == nil && p.seg == g && !g.gone {
		s.mu.indexes.putIndex(p, entries)
	}
	return nil
}

// readIndex reads the index of a part of a pinned, sealed segment.
func (s *Spool) readIndex(p *segmentPart, g *segmentFile) ([]layout.IndexEntry, error) {
	s.mu.Lock()
	if p.entries != nil {
		entries := p.entries
		s.mu.Unlock()
		return entries, nil
	}
	f := layout.Footer{SegmentID: g.id, DataEnd: g.end, Offset: g.footerAt, Encrypted: g.encrypted} // its other fields are not needed to read an index
	c := layout.FooterCategory{Name: p.cat.name, IndexSummary: p.IndexSummary}
	s.mu.Unlock()
	r, err := s.openReader(g)
	if err != nil {
		return nil, err
	}
	defer r.close()
	entries, err := layout.ReadIndex(r, &f, &c)
	if err == nil {
		return entries, nil
	}
	if !errors.Is(err, layout.ErrDamaged) {
		return nil, fmt.Errorf("read the index of %s: %w", g.path, err)
	}
	return s.rebuildIndex(p, g, r, err)
}

// rebuildIndex finds the records of a part by scanning its segment. Records that the footer's table counts and the scan does not
// find are lost.
func (s *Spool) rebuildIndex(p *segmentPart, g *segmentFile, r io.ReaderAt, cause error) ([]layout.IndexEntry, error) {
	s.logger.Error("damaged index: rebuilding it from the segment", "segment", g.path, "category", p.cat.name, "error", cause)
	s.metrics.rebuilt.Inc()
	entries, scan, err := scanCategory(r, g.end, g.id, p.cat.name)
	if err != nil {
		return nil, fmt.Errorf("scan %s: %w", g.path, err)
	}
	s.mu.Lock()
	l, lost := s.countMissing(p, g, entries)
	s.mu.Unlock()
	if lost {
		l.Err = fmt.Errorf("%s: %d ranges without a record's header: %w", g.path, len(scan.Unreadable), layout.ErrDamaged)
		s.logLoss(l)
	}
	return entries, nil
}

// countMissing counts as lost the records of a part that are not among the entries that were found. The mutex is held.
func (s *Spool) countMissing(p *segmentPart, g *segmentFile, entries []layout.IndexEntry) (damageLoss, bool) {
	if g.gone {
		return damageLoss{}, false
	}
	g.needsRewrite = true
	s.kickKeeper.WakeUp()
	var unfinished Amount
	at := make(map[layout.Position]bool, len(entries))
	for i := range entries {
		e := &entries[i]
		at[e.Position] = true
		if !p.done.contains(e.Position) {
			unfinished.plus(amountOf(p.cat.name, e))
		}
	}
	// Claimed records were found before; their claimants end them.
	for pos, c := range s.mu.claims {
		if c.part == p && !at[pos] {
			unfinished.plus(c.amount())
		}
	}
	a := p.held
	a.minus(unfinished)
	if a.Records <= 0 {
		return damageLoss{}, false
	}
	s.mu.finishRecords(p, recordSums{held: a, unclaimed: a})
	l := damageLoss{
		Segment: uint64(g.id.First), From: layout.SegmentHeaderLen, To: g.end, Records: a.Records, Category: p.cat.name, Err: layout.ErrDamaged,
	}
	s.countLoss(&l, p, a, true)
	return l, true
}
