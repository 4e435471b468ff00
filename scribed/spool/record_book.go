package spool

import (
	"slices"
	"sort"
	"time"

	"scribe/scribed/spool/layout"
)

// recordBook is the account of the spool's records: a plain state machine without I/O, time or locks. The spool's mutex guards
// it.
//
// A record is in one of three states: available (in its part, not in taken), claimed (in taken and in claims) or finished (in
// taken and in done). The sums of parts, categories and segments count the records that are not finished.
type recordBook struct {
	categories map[string]*categoryRecords // those with held records
	claims     map[layout.Position]recordClaim
	// strays are claimed records that were found damaged: their outcome is decided when their claim ends.
	strays  map[layout.Position]damagedClaim
	stray   recordSums
	sums    recordSums
	dropped map[string]Amount // since the folder was created
	gone    map[goneKey]Amount
	// changes counts the changes that the state file should record.
	changes uint64
	indexes *indexCache
}

// categoryRecords are the held records of one category.
type categoryRecords struct {
	name  string
	parts []*segmentPart // parts with held records, in order
	recordSums
}

// recordSums are sums of held records: all, the unclaimed ones, and those of which the appender has a copy in memory. held minus
// cached is the backlog.
type recordSums struct{ held, unclaimed, cached Amount }

func (s *recordSums) plus(o recordSums) {
	s.held.plus(o.held)
	s.unclaimed.plus(o.unclaimed)
	s.cached.plus(o.cached)
}

func (s *recordSums) minus(o recordSums) {
	s.held.minus(o.held)
	s.unclaimed.minus(o.unclaimed)
	s.cached.minus(o.cached)
}

func (s *recordSums) backlog() Amount {
	a := s.held
	a.minus(s.cached)
	return a
}

// goneKey says which category's unclaimed records left the backlog, and why.
type goneKey struct{ category, reason string }

// damagedClaim is a claimed record that is damaged.
type damagedClaim struct {
	category string
	size     uint32
	sums     recordSums
}

// segmentPart is the records of one category in one segment.
type segmentPart struct {
	cat *categoryRecords
	seg *segmentFile

	recordSums
	// finished sums the finished records of the segment's index. held and finished make up the whole index.
	finished Amount
	// IndexSummary sums up the segment's index. Once the segment has a footer, it says where the index is.
	layout.IndexSummary
	// taken are the positions that are not available: claimed and done ones. done is a subset of it.
	taken, done positionSet

	// entries is the index; nil when it is not in memory. While the segment has no footer, it is in memory and not in the cache.
	entries []layout.IndexEntry
	// Entries before cursor are not available.
	cursor int
}

// recordClaim is a claimed record.
type recordClaim struct {
	part     *segmentPart
	from     layout.Position // beginning of the range that represents the record, see positionSet
	size     uint32
	messages uint32
	frame    uint32 // bytes of the frame
	cached   bool   // claimed by its appender, which has a copy in memory
}

func newClaim(p *segmentPart, from layout.Position, e *layout.IndexEntry, cached bool) recordClaim {
	return recordClaim{part: p, from: from, size: e.Size, messages: e.Messages, frame: uint32(e.FrameBytes(p.cat.name)), cached: cached} //nolint:gosec // less than its size
}

// amount returns the amount of the record.
func (c *recordClaim) amount() Amount {
	return Amount{Records: 1, Messages: int64(c.messages), Bytes: int64(c.frame)}
}

// sums returns what a claimed record adds to the sums.
func (c *recordClaim) sums() recordSums {
	s := recordSums{held: c.amount()}
	if c.cached {
		s.cached = s.held
	}
	return s
}

// recordPick is a record to be read.
type recordPick struct {
	seg   *segmentFile
	name  string
	entry layout.IndexEntry
}

func (p *recordPick) recordRef() Ref { return Ref{Position: p.entry.Position, Size: p.entry.Size} }

func newBook(indexBytes int64) recordBook {
	return recordBook{
		categories: map[string]*categoryRecords{}, claims: map[layout.Position]recordClaim{}, strays: map[layout.Position]damagedClaim{},
		dropped: map[string]Amount{}, gone: map[goneKey]Amount{}, indexes: newIndexCache(indexBytes),
	}
}

func (a *Amount) plus(b Amount) {
	a.Records += b.Records
	a.Messages += b.Messages
	a.Bytes += b.Bytes
}

func (a *Amount) minus(b Amount) {
	a.Records -= b.Records
	a.Messages -= b.Messages
	a.Bytes -= b.Bytes
}

// amountOf returns the amount of one record.
func amountOf(name string, e *layout.IndexEntry) Amount {
	return Amount{Records: 1, Messages: int64(e.Messages), Bytes: e.FrameBytes(name)}
}

// categoryOf returns a category, and creates it if needed.
func (b *recordBook) categoryOf(name string) *categoryRecords {
	c := b.categories[name]
	if c == nil {
		c = &categoryRecords{name: name}
		b.categories[name] = c
	}
	return c
}

// attachPart adds a part's held records to the sums, and inserts the part into its category in order.
func (b *recordBook) attachPart(p *segmentPart) {
	if p.held.Records == 0 {
		return
	}
	c := b.categoryOf(p.cat.name)
	p.cat = c
	i := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].FirstPosition > p.FirstPosition })
	c.parts = slices.Insert(c.parts, i, p)
	c.plus(p.recordSums)
	b.sums.plus(p.recordSums)
	p.seg.held += p.held.Records
	p.seg.live += p.seg.maxSpace(c.name, p.held)
}

// detachPart is the inverse of attachPart.
func (b *recordBook) detachPart(p *segmentPart) {
	if p.held.Records == 0 {
		return
	}
	c := p.cat
	c.minus(p.recordSums)
	b.sums.minus(p.recordSums)
	p.seg.held -= p.held.Records
	p.seg.live -= p.seg.maxSpace(c.name, p.held)
	b.removePart(p)
}

// removePart removes a part without held records from its category.
func (b *recordBook) removePart(p *segmentPart) {
	c := p.cat
	if i := slices.Index(c.parts, p); i >= 0 {
		c.parts = slices.Delete(c.parts, i, i+1)
	}
	if len(c.parts) == 0 {
		delete(b.categories, c.name)
	}
}

// addRecord enters a record that was written to the active segment, claimed by its appender.
func (b *recordBook) addRecord(seg *segmentFile, name string, e layout.IndexEntry) {
	p := seg.names[name]
	if p == nil {
		p = &segmentPart{cat: b.categoryOf(name), seg: seg}
		seg.names[name] = p
		seg.parts = append(seg.parts, p)
	}
	from := layout.At(seg.id.First, 0)
	if len(p.entries) > 0 {
		from = p.LastPosition + 1
	}
	if p.held.Records == 0 { // the part is new, or all its records are finished and the category may have been replaced
		p.cat = b.categoryOf(name)
		p.cat.parts = append(p.cat.parts, p)
	}
	p.entries = append(p.entries, e)
	p.AddEntry(name, &e)
	a := amountOf(name, &e)
	seg.held++
	seg.live += seg.maxSpace(name, a)
	p.taken.addRange(from, e.Position+1)
	b.claims[e.Position] = newClaim(p, from, &e, true)
	b.addSums(p, recordSums{held: a, cached: a})
}

// addSums adds to the sums of a part, of its category, and of all categories.
func (b *recordBook) addSums(p *segmentPart, s recordSums) {
	p.plus(s)
	p.cat.plus(s)
	b.sums.plus(s)
}

// subtractSums is the inverse of addSums.
func (b *recordBook) subtractSums(p *segmentPart, s recordSums) {
	p.minus(s)
	p.cat.minus(s)
	b.sums.minus(s)
}

// isReached reports whether no unclaimed record of a category is at or before a position.
func (b *recordBook) isReached(name string, upTo layout.Position) bool {
	c := b.categories[name]
	if c == nil {
		return true
	}
	i := slices.IndexFunc(c.parts, func(p *segmentPart) bool { return p.unclaimed.Records > 0 })
	if i < 0 {
		return true
	}
	p := c.parts[i]
	first := layout.At(p.seg.id.First, 0)
	if p.entries != nil {
		b.eachAvailable(p, func(_ int, e *layout.IndexEntry) bool { first = e.Position; return false })
	} else if len(p.taken) > 0 && p.taken[0].From <= first {
		first = p.taken[0].To // after the record before the first unclaimed one
	}
	return first > upTo
}

// claimRecords claims records from the front of a category's backlog, up to a position and to maxBytes, and at least one. It
// stops at a part whose index is not in memory; need is that part if nothing was claimed before it.
func (b *recordBook) claimRecords(name string, maxBytes int64, upTo layout.Position) (picks []recordPick, need *segmentPart) {
	c := b.categories[name]
	if c == nil {
		return nil, nil
	}
	total := int64(0)
	for _, p := range c.parts {
		if p.unclaimed.Records == 0 {
			continue
		}
		if p.FirstPosition > upTo {
			break
		}
		if p.entries == nil {
			if len(picks) > 0 {
				return picks, nil
			}
			return nil, p
		}
		b.indexes.Get(p) // it is used
		full := false
		b.eachAvailable(p, func(i int, e *layout.IndexEntry) bool {
			a := amountOf(name, e)
			if full = e.Position > upTo || len(picks) > 0 && total+a.Bytes > maxBytes; full {
				return false
			}
			total += a.Bytes
			from := p.rangeStart(i)
			p.taken.addRange(from, e.Position+1)
			b.claims[e.Position] = newClaim(p, from, e, false)
			b.subtractSums(p, recordSums{unclaimed: a})
			picks = append(picks, recordPick{seg: p.seg, name: name, entry: *e})
			return true
		})
		if full {
			break
		}
	}
	return picks, nil
}

// rangeStart is the beginning of the range that represents an entry.
func (p *segmentPart) rangeStart(i int) layout.Position {
	if i == 0 {
		return layout.At(p.seg.id.First, 0)
	}
	return p.entries[i-1].Position + 1
}

// eachAvailable calls fn with the available entries in order, until it returns false. fn may take the entry.
func (b *recordBook) eachAvailable(p *segmentPart, fn func(i int, e *layout.IndexEntry) bool) {
	for i := p.cursor; i < len(p.entries) && p.unclaimed.Records > 0; {
		e := &p.entries[i]
		if r := p.taken.findRange(e.Position); r < len(p.taken) && p.taken[r].From <= e.Position {
			// Everything up to the end of the range is taken.
			next := i + sort.Search(len(p.entries)-i, func(j int) bool { return p.entries[i+j].Position >= p.taken[r].To })
			if i == p.cursor {
				p.cursor = next
			}
			i = next
			continue
		}
		if !fn(i, e) {
			return
		}
		i++
	}
}

// claimOf returns the claim of a reference.
func (b *recordBook) claimOf(ref Ref) (layout.Position, recordClaim, bool) {
	at := ref.Position
	c, ok := b.claims[at]
	return at, c, ok && c.size == ref.Size
}

// releaseClaim makes a claimed record available again. A record found damaged meanwhile is gone.
func (b *recordBook) releaseClaim(ref Ref) {
	at, c, ok := b.claimOf(ref)
	if !ok {
		if x, ok := b.endStray(ref); ok {
			b.noteGone(x.category, Damaged, x.sums.held)
		}
		return
	}
	p := c.part
	delete(b.claims, at)
	p.taken.removeRange(c.from, at+1)
	p.cursor = 0 // eachAvailable skips taken ranges
	s := c.sums()
	b.addSums(p, recordSums{unclaimed: s.held})
	b.subtractSums(p, recordSums{cached: s.cached})
}

// endStray ends the claim of a record that was found damaged.
func (b *recordBook) endStray(ref Ref) (damagedClaim, bool) {
	x, ok := b.strays[ref.Position]
	if ok = ok && x.size == ref.Size; ok {
		delete(b.strays, ref.Position)
		b.stray.minus(x.sums)
	}
	return x, ok
}

// loseClaim finishes a claimed record that is damaged. In the backlog it counts as before until its claim ends.
func (b *recordBook) loseClaim(at layout.Position, c recordClaim) Amount {
	x := damagedClaim{category: c.part.cat.name, size: c.size, sums: c.sums()}
	b.strays[at] = x
	b.stray.plus(x.sums)
	return b.finishClaim(at, c)
}

// noteGone counts records that left the backlog other than by their claimant.
func (b *recordBook) noteGone(category, reason string, a Amount) {
	key := goneKey{category, reason}
	sum := b.gone[key]
	sum.plus(a)
	b.gone[key] = sum
}

// backlog sums the records that are in the spool only: held, without a copy in memory.
func (b *recordBook) backlog() Amount {
	a := b.sums.backlog()
	a.plus(b.stray.backlog())
	return a
}

// finishClaim marks a claimed record as done, and returns its amount.
func (b *recordBook) finishClaim(at layout.Position, c recordClaim) Amount {
	p := c.part
	delete(b.claims, at)
	p.done.addRange(c.from, at+1)
	s := c.sums()
	b.finishRecords(p, s)
	return s.held
}

// finishRecords moves held records to the finished ones.
func (b *recordBook) finishRecords(p *segmentPart, s recordSums) {
	a := s.held
	b.subtractSums(p, s)
	p.finished.plus(a)
	p.seg.held -= a.Records
	p.seg.live -= p.seg.maxSpace(p.cat.name, a)
	b.changes++
	if p.held.Records == 0 {
		b.removePart(p)
	}
}

// dropRecords drops available records from the front until atLeast bytes are dropped and none is older than olderThan. need is a
// part whose index must be loaded to continue.
func (b *recordBook) dropRecords(name string, atLeast, olderThan int64, reason string) (sum Amount, need *segmentPart) {
	c := b.categories[name]
	if c == nil {
		return sum, nil
	}
	for _, p := range slices.Clone(c.parts) {
		if p.unclaimed.Records == 0 {
			continue
		}
		if sum.Bytes >= atLeast && p.FirstTime >= olderThan {
			break
		}
		if p.LastTime < olderThan || sum.Bytes+p.unclaimed.Bytes <= atLeast {
			sum.plus(b.dropPart(p))
			continue
		}
		if p.entries == nil {
			need = p
			break
		}
		some, more := b.dropSome(p, atLeast-sum.Bytes, olderThan)
		sum.plus(some)
		if !more {
			break
		}
	}
	if sum.Records > 0 {
		total := b.dropped[name]
		total.plus(sum)
		b.dropped[name] = total
		b.noteGone(name, reason, sum)
	}
	return sum, need
}

// dropPart drops all available records of a part. It needs no index: positions that are not taken are available.
func (b *recordBook) dropPart(p *segmentPart) Amount {
	a := p.unclaimed
	first, end := layout.At(p.seg.id.First, 0), p.LastPosition+1
	p.taken.eachGap(first, end, p.done.addRange)
	p.taken = append(p.taken[:0], layout.PositionRange{From: first, To: end})
	b.finishRecords(p, recordSums{held: a, unclaimed: a})
	return a
}

// dropSome drops available records of a part; more is false when it reached a record that stays.
func (b *recordBook) dropSome(p *segmentPart, atLeast, olderThan int64) (sum Amount, more bool) {
	more = true
	b.indexes.Get(p) // it is used
	b.eachAvailable(p, func(i int, e *layout.IndexEntry) bool {
		if more = sum.Bytes < atLeast || e.Time < olderThan; !more {
			return false
		}
		a := amountOf(p.cat.name, e)
		from := p.rangeStart(i)
		p.taken.addRange(from, e.Position+1)
		p.done.addRange(from, e.Position+1)
		sum.plus(a)
		return true
	})
	if sum.Records > 0 {
		b.finishRecords(p, recordSums{held: sum, unclaimed: sum})
	}
	return sum, more
}

// oldestHeld returns when the oldest held record of a part was appended. Under steady traffic the part of the segment that is being filled always
// has some, and its first one may be finished for long. Without its index, which only a segment lacks that is filled, it is the first one's time.
func (p *segmentPart) oldestHeld() int64 {
	first := layout.At(p.seg.id.First, 0)
	if len(p.done) == 0 || p.done[0].From > first || p.entries == nil {
		return p.FirstTime
	}
	first = p.done[0].To
	if i := sort.Search(len(p.entries), func(i int) bool { return p.entries[i].Position >= first }); i < len(p.entries) {
		return p.entries[i].Time
	}
	return p.FirstTime
}

// describeQueue returns the sums of a category.
func (b *recordBook) describeQueue(name string) CategorySums {
	q := CategorySums{Category: name}
	if c := b.categories[name]; c != nil {
		q.Held, q.Unclaimed, q.Last = c.held, c.unclaimed, c.parts[len(c.parts)-1].LastPosition
		oldest := c.parts[0].oldestHeld()
		for _, p := range c.parts { // clocks may go back; otherwise the first is the oldest
			oldest = min(oldest, p.oldestHeld())
		}
		q.Oldest = time.UnixMicro(oldest)
	}
	return q
}
