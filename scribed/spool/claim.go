package spool

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/spool/layout"
)

// Claim takes the oldest records of the category's backlog up to a position, in order of append, about maxBytes of frames, and at least
// one record if there is any. Their data is read into buf, of which the whole capacity is used, or into new memory if that is too small; both are
// the caller's. Records that turn out damaged are counted as lost, and left out. On an error nothing is claimed.
func (s *Spool) Claim(category string, maxBytes int, upTo Position, buf []byte) ([]Claimed, error) {
	if !s.calls.Enter() {
		return nil, ErrClosed
	}
	defer s.calls.Leave()
	for {
		s.mu.Lock()
		picks, need := s.mu.claim(category, int64(maxBytes), upTo)
		pinned := s.pin(picks)
		s.mu.Unlock()
		if need != nil {
			if err := s.load(need); err != nil {
				return nil, fmt.Errorf("spool: claim from %s: %w", category, err)
			}
			continue
		}
		if len(picks) == 0 {
			return nil, nil
		}
		out, err := s.read(picks, buf)
		s.unpin(pinned...)
		if err != nil {
			s.Release(refsOf(picks)...)
			return nil, fmt.Errorf("spool: claim from %s: %w", category, err)
		}
		if len(out) > 0 {
			return out, nil
		}
	}
}

func refsOf(picks []pick) []Ref {
	refs := make([]Ref, len(picks))
	for i := range picks {
		refs[i] = refOf(&picks[i].entry)
	}
	return refs
}

func refOf(e *layout.Entry) Ref {
	return Ref{Segment: uint64(e.Position.Segment()), Offset: e.Position.Offset(), Size: e.Size}
}

// pin keeps the files of records until unpin. The mutex is held.
func (s *Spool) pin(picks []pick) []*segment {
	var pinned []*segment
	for i := range picks {
		if g := picks[i].seg; len(pinned) == 0 || pinned[len(pinned)-1] != g {
			g.readers++
			pinned = append(pinned, g)
		}
	}
	return pinned
}

func (s *Spool) unpin(pinned ...*segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range pinned {
		if g.readers--; g.readers > 0 {
			continue
		}
		if g.gone || g.held == 0 {
			wake(s.kickKeeper)
		} else if g.state == sealed && g.file != nil { // sealed while it was read
			_ = g.file.Close()
			g.file = nil
		}
	}
}

// reader reads a segment's file. Of a segment whose sync failed it gives what is not known to be on disk from memory.
type reader struct {
	s    *Spool
	g    *segment
	file vfs.File
	own  bool
}

// reader opens a pinned segment.
func (s *Spool) reader(g *segment) (*reader, error) {
	s.mu.Lock()
	r := &reader{s: s, g: g, file: g.file}
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
func (r *reader) ReadAt(p []byte, off int64) (int, error) {
	n, err := salvager{r.file}.ReadAt(p, off)
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
		if from-off <= int64(n) && to-off > int64(n) { // it goes on where the file ended, or failed
			if n = int(to - off); n == len(p) {
				err = nil
			}
		}
	}
	return n, err
}

func (r *reader) close() {
	if r.own {
		_ = r.file.Close() // it was only read
	}
}

// maxGap is how many bytes between two records are read along rather than read around.
const maxGap = 4 << 10

// group is a number of records that are read at once.
type group struct {
	picks    []pick
	from, to int64
}

func groups(picks []pick) (out []group, total int64) {
	for i := range picks {
		g, e := picks[i].seg, &picks[i].entry
		from, to := int64(e.Offset), int64(e.Offset)+int64(e.Size)
		if n := len(out); n > 0 && out[n-1].picks[0].seg == g && from-out[n-1].to <= maxGap {
			total += to - out[n-1].to
			out[n-1].to, out[n-1].picks = to, picks[i-len(out[n-1].picks):i+1]
			continue
		}
		out = append(out, group{picks: picks[i : i+1], from: from, to: to})
		total += to - from
	}
	return out, total
}

// read reads and checks claimed records. Those that are damaged become lost; an error is one of the file system.
func (s *Spool) read(picks []pick, buf []byte) (out []Claimed, err error) {
	parts, total := groups(picks)
	if buf = buf[:cap(buf)]; int64(len(buf)) < total {
		buf = make([]byte, total)
	}
	out = make([]Claimed, 0, len(picks))
	var lost []damaged
	var r *reader
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
			if r, err = s.reader(g); err != nil {
				return nil, err
			}
		}
		b := buf[: p.to-p.from : p.to-p.from]
		buf = buf[len(b):]
		if n, err := r.ReadAt(b, p.from); errors.Is(err, io.EOF) {
			clear(b[n:]) // the file was cut: what is missing is damaged
		} else if err != nil {
			return nil, fmt.Errorf("read %d bytes at %d of %s: %w", len(b), p.from, g.path, err)
		}
		for i := range p.picks {
			e := &p.picks[i].entry
			raw := b[int64(e.Offset)-p.from:][:e.Size:e.Size]
			data, err := checkRecord(p.picks[i].name, e, raw)
			if err != nil {
				lost = append(lost, damaged{pick: p.picks[i], raw: raw, err: err})
				continue
			}
			out = append(out, Claimed{Ref: refOf(e), Messages: int(e.Messages), Time: time.UnixMicro(e.Time), Data: data})
		}
	}
	for _, d := range lost {
		s.loseRecord(d)
	}
	return out, nil
}

// checkRecord checks that a record is the one of an entry, and returns its data.
func checkRecord(name string, e *layout.Entry, raw []byte) ([]byte, error) {
	h, err := layout.ParseRecordHeader(raw)
	if err != nil {
		return nil, err
	}
	if h.Position != e.Position || h.Category != name || h.Size() != int64(e.Size) || h.Messages != e.Messages {
		return nil, fmt.Errorf("%w: another record stands here", layout.ErrDamaged)
	}
	return h.Data(raw)
}

// damaged is a record that cannot be read, and what was read instead.
type damaged struct {
	pick
	raw []byte
	err error
}

// loss describes the damage, without what the record was.
func (s *Spool) loss(d damaged) Loss {
	l := Loss{
		Segment: uint64(d.entry.Position.Segment()), From: int64(d.entry.Offset), To: int64(d.entry.Offset) + int64(d.entry.Size), Records: 1,
		Category: d.name, Err: fmt.Errorf("record %s in %s: %w", d.entry.Position, d.seg.path, d.err),
	}
	l.QuarantineFile = s.keepDamaged(l.Segment, layout.Range{From: l.From, To: l.To}, d.raw)
	return l
}

// loseRecord counts a claimed record as lost. It is finished: nobody will get it.
func (s *Spool) loseRecord(d damaged) {
	l := s.loss(d)
	s.mu.Lock()
	at, c, ok := s.mu.claimOf(refOf(&d.entry))
	if ok {
		s.lost(&l, c.part, s.mu.finish(at, c), s.addGone)
	}
	s.mu.Unlock()
	if ok {
		s.tellLoss(l)
	}
}

// loseHeld counts a record of a part as lost, whether it is claimed or not, unless it is finished.
func (s *Spool) loseHeld(p *part, d damaged) {
	l := s.loss(d)
	at, a := d.entry.Position, amountOf(d.name, d.entry.Size, d.entry.Messages)
	s.mu.Lock()
	done := p.done.contains(at)
	switch c, claimed := s.mu.claims[at]; {
	case done:
	case claimed:
		s.lost(&l, p, s.mu.lose(at, c), s.addLoss)
	default:
		p.taken.add(at, at+1)
		p.done.add(at, at+1)
		s.mu.settle(p, sums{held: a, unclaimed: a})
		s.lost(&l, p, a, s.addGone)
	}
	s.mu.Unlock()
	if !done {
		s.tellLoss(l)
	}
}

// lost counts a loss that was settled. The mutex is held.
func (s *Spool) lost(l *Loss, p *part, a Amount, count func(Loss, Amount)) {
	l.Messages, l.Bytes = a.Messages, a.Bytes
	count(*l, a)
	s.reclaimable(p.seg)
	s.dirty()
}

// load reads the index of a part into the cache. A damaged one is rebuilt from the segment.
func (s *Spool) load(p *part) error {
	s.mu.Lock()
	g := p.seg
	if p.entries != nil || g.gone {
		s.mu.Unlock()
		return nil // somebody was faster, or it is another part's by now
	}
	g.readers++
	s.mu.Unlock()
	defer s.unpin(g)
	entries, err := s.readIndex(p, g)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.entries == nil && p.seg == g && !g.gone {
		s.mu.indexes.put(p, entries)
	}
	return nil
}

// readIndex reads the index of a part of a pinned, sealed segment.
func (s *Spool) readIndex(p *part, g *segment) ([]layout.Entry, error) {
	s.mu.Lock()
	if p.entries != nil {
		entries := p.entries
		s.mu.Unlock()
		return entries, nil
	}
	f, c := g.footer(), p.inFooter()
	s.mu.Unlock()
	r, err := s.reader(g)
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

// footer is what is known of the footer of a sealed segment.
func (g *segment) footer() layout.Footer {
	return layout.Footer{SegmentID: g.id, DataEnd: g.end, Offset: g.footerAt}
}

// inFooter is the part as it stands in the footer's table.
func (p *part) inFooter() layout.Category {
	a := p.held
	a.plus(p.finished)
	return layout.Category{
		Name: p.cat.name, Records: uint32(a.Records), Messages: uint64(a.Messages), Bytes: uint64(a.Bytes), FirstTime: p.firstTime, LastTime: p.lastTime,
		FirstPosition: p.first, LastPosition: p.last, IndexOffset: p.indexOffset, IndexLen: p.indexLen, IndexCRC: p.indexCRC,
	}
}

// rebuildIndex finds the records of a part by reading its segment. What the footer's table had and is not found is lost.
func (s *Spool) rebuildIndex(p *part, g *segment, r io.ReaderAt, cause error) ([]layout.Entry, error) {
	s.logger.Error("an index is damaged; the segment is read instead", "segment", g.path, "category", p.cat.name, "error", cause)
	s.metrics.rebuilt.Inc()
	entries := make([]layout.Entry, 0, 16)
	scan, err := layout.ScanSegment(r, g.end, g.id, func(rec *layout.Scanned) error {
		if rec.Category == p.cat.name {
			entries = append(entries, rec.Entry())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan %s: %w", g.path, err)
	}
	s.mu.Lock()
	l, lost := s.missing(p, g, entries)
	s.mu.Unlock()
	if lost {
		l.Err = fmt.Errorf("%s: %d ranges without a record's header: %w", g.path, len(scan.Unreadable), layout.ErrDamaged)
		s.tellLoss(l)
	}
	return entries, nil
}

// missing counts as lost what a part should have and is not among the entries that were found. The mutex is held.
func (s *Spool) missing(p *part, g *segment, entries []layout.Entry) (Loss, bool) {
	if g.gone {
		return Loss{}, false
	}
	g.mend = true
	wake(s.kickKeeper)
	var unfinished Amount
	at := make(map[layout.Position]bool, len(entries))
	for i := range entries {
		e := &entries[i]
		at[e.Position] = true
		if !p.done.contains(e.Position) {
			unfinished.plus(amountOf(p.cat.name, e.Size, e.Messages))
		}
	}
	// Claimed records were found before, and are their claimants' to settle.
	for pos, c := range s.mu.claims {
		if c.part == p && !at[pos] {
			unfinished.plus(amountOf(p.cat.name, c.size, c.messages))
		}
	}
	a := p.held
	a.minus(unfinished)
	if a.Records <= 0 {
		return Loss{}, false
	}
	s.mu.settle(p, sums{held: a, unclaimed: a})
	l := Loss{
		Segment: uint64(g.id.First), From: layout.SegmentHeaderLen, To: g.end, Records: a.Records, Category: p.cat.name,
		Messages: a.Messages, Bytes: a.Bytes, Err: layout.ErrDamaged,
	}
	s.addGone(l, a)
	s.reclaimable(g)
	s.dirty()
	return l, true
}

// index returns the index of a part for the keeper, without putting it into the cache.
func (s *Spool) index(p *part, g *segment) ([]layout.Entry, error) {
	entries, err := s.readIndex(p, g)
	return slices.Clip(entries), err
}
