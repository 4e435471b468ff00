package spool

import (
	"errors"
	"fmt"
	"math"

	"scribe/internal/base/durable"
	"scribe/scribed/keyring"
	"scribe/scribed/spool/layout"
)

// Append writes all records, in order, or none; it does not sync them. The records are claimed by the caller, which calls Done or
// Release for each. The error is ErrFull, ErrClosed, ErrFailed, or one of the file system. After the last two, the records may
// reappear after a crash although they are not held. If records are encrypted, it may also be that of a key that can't be made; then nothing was
// written.
//
// Append waits for the disk while UnsyncedBytes are not synced.
func (s *Spool) Append(recs []Record) ([]Ref, error) {
	if len(recs) == 0 {
		return nil, nil
	}
	w, err := s.prepareAppend(recs)
	if err != nil {
		return nil, err
	}
	s.tail.Lock()
	defer s.tail.Unlock()
	for {
		g, err := s.segmentFor(w)
		if err != nil {
			return nil, err
		}
		var refs []Ref
		buf, err := s.reserveChunk(g, w.size)
		if err == nil {
			refs, err = s.writeRecords(g, w, buf)
		}
		if !errors.Is(err, errAgain) {
			return refs, err
		}
	}
}

// errAgain says that the segment failed meanwhile: the append continues in another one.
var errAgain = errors.New("spool: segment is gone")

// pendingAppend is an Append: its records, and what can be computed without a lock.
type pendingAppend struct {
	recs []Record
	sums []uint32 // of the frames; nil if they are encrypted, which depends on where they are written
	sum  Amount
	// keys encrypt the records; nil if they are not encrypted.
	keys  []*keyring.Key
	bound []byte // scratch memory
	// size is the space that the records take, footer the most that they add to the segment's footer.
	size, footer int64
}

func (s *Spool) prepareAppend(recs []Record) (*pendingAppend, error) {
	w := &pendingAppend{recs: recs, sum: Amount{Records: int64(len(recs))}}
	overhead := 0
	if s.keys.Encrypts() {
		overhead = layout.EncryptionOverhead
	} else {
		w.sums = make([]uint32, len(recs))
	}
	for i := range recs {
		r := &recs[i]
		switch {
		case len(r.Category) == 0 || len(r.Category) > layout.MaxCategory:
			return nil, fmt.Errorf("spool: append: a category's name of %d bytes, want 1 to %d", len(r.Category), layout.MaxCategory)
		case r.Messages < 0 || int64(r.Messages) > math.MaxUint32:
			return nil, fmt.Errorf("spool: append: a record with %d messages", r.Messages)
		case len(r.Data) > layout.MaxData-overhead:
			return nil, fmt.Errorf("spool: append: a record of %d bytes, at most %d fit: %w", len(r.Data), layout.MaxData-overhead, ErrFull)
		}
		if w.sums != nil {
			w.sums[i] = layout.Checksum(r.Data)
		}
		w.sum.Messages += int64(r.Messages)
		w.sum.Bytes += int64(len(r.Data))
		w.size += layout.Padded(layout.RecordSize(len(r.Category), len(r.Data)+overhead))
		w.footer += layout.MaxEntryLen
		if i == 0 || r.Category != recs[i-1].Category {
			w.footer += layout.CategoryLen + int64(len(r.Category))
		}
	}
	if w.minSegment() > math.MaxInt32 {
		return nil, fmt.Errorf("spool: append: %d bytes at once: %w", w.size, ErrFull)
	}
	if s.keys.Encrypts() {
		return w, s.findKeys(w)
	}
	return w, nil
}

// findKeys finds the keys of the records, and makes those that are missing.
func (s *Spool) findKeys(w *pendingAppend) (err error) {
	if !s.calls.Enter() { // no key is made after Close
		return ErrClosed
	}
	defer s.calls.Leave()
	w.keys = make([]*keyring.Key, len(w.recs))
	for i := range w.recs {
		if i > 0 && w.recs[i].Category == w.recs[i-1].Category {
			w.keys[i] = w.keys[i-1]
			continue
		}
		if w.keys[i], err = s.keys.WritingKey(w.recs[i].Category); err == nil {
			continue
		}
		s.metrics.keyFailures.Inc()
		if noSpace(err) {
			s.outOfSpace(err)
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return fmt.Errorf("spool: append: %w", err)
	}
	return nil
}

// appendRecord appends the i-th record, whose header still lacks the length and the checksum of its data.
func (w *pendingAppend) appendRecord(b []byte, h *layout.RecordHeader, i int) []byte {
	r := &w.recs[i]
	if w.keys == nil {
		h.DataLen, h.DataCRC = uint32(len(r.Data)), w.sums[i]
		return append(layout.AppendRecordHeader(b, h), r.Data...)
	}
	h.Encrypted, h.DataLen = true, uint32(len(r.Data)+layout.EncryptionOverhead)
	w.bound = h.AppendBound(w.bound[:0])
	head := len(b)
	b = append(b, make([]byte, layout.RecordHeaderLen+len(h.Category))...)
	data := len(b)
	b = w.keys[i].AppendEncrypted(b, r.Data, w.bound)
	h.DataCRC = layout.Checksum(b[data:])
	w.bound = layout.AppendRecordHeader(w.bound[:0], h)
	copy(b[head:data], w.bound)
	return b
}

// minSegment is the size of a segment that holds only these records.
func (w *pendingAppend) minSegment() int64 {
	return layout.SegmentHeaderLen + w.size + w.footer + layout.TrailerLen
}

// hasSpaceFor reports whether the records fit into a segment together with its footer.
func (g *segmentFile) hasSpaceFor(w *pendingAppend) bool {
	return g.end+w.size+g.footerBytes+w.footer+layout.TrailerLen <= g.capacity
}

// segmentFor returns the active segment, or a new one if the records do not fit. The tail is held.
func (s *Spool) segmentFor(w *pendingAppend) (*segmentFile, error) {
	s.mu.Lock()
	if s.calls.Closed() {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	if g := s.mu.active; g != nil && g.hasSpaceFor(w) {
		s.mu.Unlock()
		return g, nil
	}
	g := s.mu.spare
	s.mu.spare = nil
	if g != nil && !g.hasSpaceFor(w) {
		s.discardSegment(g) // it cannot be used later: segments are used in order of their numbers
		g = nil
	}
	s.mu.Unlock()
	if g == nil {
		var err error
		if g, err = s.createSegment(w.minSegment()); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endActive()
	if spare := s.mu.spare; spare != nil && spare.id.First < g.id.First {
		s.mu.spare = nil // it was created meanwhile
		s.discardSegment(spare)
	}
	s.mu.active = g
	s.mu.segments = append(s.mu.segments, g)
	return g, nil
}

// endActive hands the active segment to the keeper for sealing. Tail and mutex are held.
func (s *Spool) endActive() {
	if g := s.mu.active; g != nil {
		g.state, g.names, s.mu.active = sealing, nil, nil
		s.kickKeeper.WakeUp()
	}
}

// chunkBytes is the size of the chunks of unsynced bytes.
func (s *Spool) chunkBytes() int64 {
	return max(4<<10, min(s.cfg.UnsyncedBytes/16, 1<<20))
}

// reserveChunk returns memory for the next bytes of a segment, after waiting for capacity. The tail is held.
func (s *Spool) reserveChunk(g *segmentFile, n int64) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.mu.unsynced > 0 && s.mu.unsynced+n > s.cfg.UnsyncedBytes {
		failures, changed := s.mu.failures, s.mu.changed
		s.mu.Unlock()
		s.kickSync.WakeUp()
		s.kickKeeper.WakeUp()
		<-changed // Close takes the tail before it stops the syncer and the keeper, so one of them will broadcast
		s.mu.Lock()
		if s.mu.failures != failures {
			return nil, ErrFailed
		}
	}
	if g.state != active {
		return nil, errAgain
	}
	// Chunks that are on disk are reused. This is done only here, under the tail: a chunk may have bytes that are not entered
	// yet.
	g.recycleChunks(&s.chunks)
	if k := len(g.chunks); k > 0 {
		if c := &g.chunks[k-1]; int64(cap(c.buf)-len(c.buf)) >= n {
			return c.buf[len(c.buf) : int64(len(c.buf))+n], nil
		}
	}
	mem := s.chunks.Get(int(max(n, s.chunkBytes())))
	g.chunks = append(g.chunks, unsyncedChunk{from: g.end, buf: mem.B[:0], mem: mem})
	return mem.B[:n], nil
}

// writeRecords writes the records at the end of a segment and enters them in the book. buf is the last chunk's memory for them.
// The tail is held.
func (s *Spool) writeRecords(g *segmentFile, w *pendingAppend, buf []byte) ([]Ref, error) {
	s.mu.Lock()
	if g.state != active {
		s.mu.Unlock()
		return nil, errAgain
	}
	durable := uint32(g.synced)
	g.readers++ // a sync may fail during the write, and then the keeper removes segments that are not pinned
	s.mu.Unlock()
	now := s.clock().UnixMicro()
	refs := make([]Ref, len(w.recs))
	entries := make([]layout.IndexEntry, len(w.recs))
	b := buf[:0]
	for i := range w.recs {
		r := &w.recs[i]
		offset := uint32(g.end) + uint32(len(b))
		h := layout.RecordHeader{
			Category: r.Category, Messages: uint32(r.Messages), Position: layout.At(g.id.First, offset), Time: now, Durable: durable,
		}
		b = w.appendRecord(b, &h, i)
		size := uint32(h.Size())
		b = append(b, make([]byte, layout.Padded(int64(size))-int64(size))...)
		refs[i] = Ref{Position: h.Position, Size: size}
		entries[i] = layout.IndexEntry{Position: h.Position, Time: now, Offset: offset, Size: size, Messages: h.Messages, Encrypted: h.Encrypted}
	}
	if n, err := g.file.WriteAt(b, g.end); err != nil {
		err = s.endAfterFailedWrite(g, b[:n], err)
		s.unpinSegments(g)
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	g.readers--
	if g.state != active {
		// A sync failed during the write. The keeper may already be rewriting the segment's earlier records, without these.
		s.kickKeeper.WakeUp()
		return nil, ErrFailed
	}
	last := &g.chunks[len(g.chunks)-1]
	last.buf = last.buf[:len(last.buf)+len(b)]
	for i := range w.recs {
		name := w.recs[i].Category
		if g.names[name] == nil {
			g.footerBytes += layout.CategoryLen + int64(len(name))
		}
		s.mu.addRecord(g, name, entries[i])
	}
	s.mu.sequence++
	g.lastAppend = s.mu.sequence
	if g.firstUnsynced == 0 {
		g.firstUnsynced = s.mu.sequence
		s.armSync.WakeUp()
	}
	g.end += int64(len(b))
	g.footerBytes += layout.MaxEntryLen * int64(len(w.recs))
	s.mu.unsynced += int64(len(b))
	s.metrics.appended.add(w.sum)
	if s.mu.spare == nil && g.end > g.capacity*3/4 {
		s.kickKeeper.WakeUp()
	}
	return refs, nil
}

// endAfterFailedWrite ends a segment into which a write failed: the written bytes are zeroed, and the segment is sealed before
// them. The tail is held.
func (s *Spool) endAfterFailedWrite(g *segmentFile, written []byte, cause error) error {
	clear(written)
	var zeroErr error
	if len(written) > 0 {
		_, zeroErr = g.file.WriteAt(written, g.end)
	}
	s.mu.Lock()
	g.hasLeftovers = true
	if s.mu.active == g { // it has not failed meanwhile
		s.endActive()
	}
	s.mu.Unlock()
	if noSpace(cause) {
		s.outOfSpace(cause)
		if zeroErr == nil {
			return fmt.Errorf("%w: %w", ErrFull, cause)
		}
	}
	if zeroErr != nil {
		return fmt.Errorf("spool: append to %s: %w; it can't be undone: %w", g.path, cause, zeroErr)
	}
	return fmt.Errorf("spool: append to %s: %w", g.path, cause)
}

// createSegment creates a segment that holds at least need bytes.
func (s *Spool) createSegment(need int64) (*segmentFile, error) {
	capacity := max(s.cfg.SegmentBytes, need)
	s.mu.Lock()
	switch {
	case s.mu.diskFull:
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: the disk is full", ErrFull)
	case s.mu.used+capacity+s.rewriteHeadroom() > s.cfg.MaxBytes:
		used := s.mu.used
		s.mu.Unlock()
		s.kickKeeper.WakeUp()
		return nil, fmt.Errorf("%w: %d of %d bytes are used, a segment takes %d", ErrFull, used, s.cfg.MaxBytes, capacity)
	case s.mu.next == math.MaxUint32:
		s.mu.Unlock()
		return nil, errors.New("spool: no numbers for segments are left")
	}
	s.mu.used += capacity
	id := layout.SegmentID{First: s.mu.next, Last: s.mu.next, Generation: 1}
	s.mu.next++
	s.mu.Unlock()

	g := &segmentFile{
		id: id, path: s.fs.PathJoin(s.cfg.Dir, id.Name()), state: active, charge: capacity, capacity: capacity,
		end: layout.SegmentHeaderLen, synced: layout.SegmentHeaderLen, names: map[string]*segmentPart{},
		encrypted: s.keys.Encrypts(),
	}
	err := s.createFile(g)
	if err == nil {
		return g, nil
	}
	s.mu.Lock()
	if g.file != nil {
		s.discardSegment(g)
	} else {
		s.mu.used -= capacity
	}
	s.mu.Unlock()
	err = fmt.Errorf("spool: create %s: %w", g.path, err)
	if noSpace(err) {
		s.outOfSpace(err)
		return nil, fmt.Errorf("%w: %w", ErrFull, err)
	}
	s.logger.Error("creating a segment failed", "error", err)
	return nil, err
}

// rewriteHeadroom is the part of MaxBytes that appends leave free for rewriting segments. The mutex is held.
func (s *Spool) rewriteHeadroom() int64 {
	return max(0, s.cfg.SegmentBytes/2-s.mu.rewriting)
}

// createFile creates a segment's file. Its name, space and header are durable before the first record is written.
func (s *Spool) createFile(g *segmentFile) error {
	f, err := s.fs.Create(g.path, diskCategory)
	if err != nil {
		return err
	}
	g.file = f
	if err := f.Preallocate(0, g.capacity); err != nil && !cannotPreallocate(err) {
		return fmt.Errorf("preallocate %d bytes: %w", g.capacity, err)
	}
	header := layout.AppendSegmentHeader(nil, &layout.SegmentHeader{SegmentID: g.id, Created: s.clock().UnixMicro()}, g.encrypted)
	if _, err := f.WriteAt(header, 0); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := durable.SyncFolder(s.fs, s.cfg.Dir); err != nil {
		return fmt.Errorf("sync the folder: %w", err)
	}
	return nil
}

// discardSegment hands a segment to the keeper for removal. The mutex is held.
func (s *Spool) discardSegment(g *segmentFile) {
	g.gone = true
	s.mu.trash = append(s.mu.trash, g)
	s.kickKeeper.WakeUp()
}
