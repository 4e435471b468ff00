package spool

import (
	"slices"
	"sort"
	"time"

	"scribe/scribed/spool/layout"
)

// recordBook is what the spool knows of its records: a plain state machine without I/O, time or locks. The spool's mutex guards it.
//
// A record is in one of three states. It is available (in its part, not in taken), claimed (in taken and in claims) or finished (in
// taken and in done). The sums of the parts, categories and segments are of those that are not finished.
type recordBook struct {
	categories map[string]*categoryRecords // those with held records
	claims     map[layout.Position]recordClaim
	// strays are claimed records that were found damaged: what becomes of them is decided when their claim ends.
	strays  map[layout.Position]damagedClaim
	stray   recordSums
	sums    recordSums
	dropped map[string]Amount // since the folder was made
	gone    map[goneKey]Amount
	// changes counts what the state file should learn of.
	changes uint64
	indexes indexCache
}

// categoryRecords is what is held of one.
type categoryRecords struct {
	name  string
	parts []*segmentPart // with held records, in order
	recordSums
}

// recordSums are of records that are held: all, those that nobody claimed, and those of which whoever appended them has a copy in memory.
// held without cached is the backlog.
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

// goneKey is of what, and why, records left the backlog that nobody had claimed.
type goneKey struct{ category, reason string }

// damagedClaim is a claimed record that is damaged.
type damagedClaim struct {
	category string
	size     uint32
	sums     recordSums
}

// segmentPart is what a segment has of a category.
type segmentPart struct {
	cat *categoryRecords
	seg *segmentFile

	recordSums
	// finished is what is done of what the segment's index has. held and finished make the whole index.
	finished            Amount
	firstTime, lastTime int64
	first, last         layout.Position
	// taken is what is not available: what is claimed, and done, which is a part of it.
	taken, done positionSet

	// entries is the index, nil when it is not in memory. It is, and is not in the cache, while the segment has no footer.
	entries []layout.IndexEntry
	cached  *cachedIndex
	// Entries before cursor are not available.
	cursor int
	// Where the index is in the segment's footer.
	indexOffset, indexLen, indexCRC uint32
}

// recordClaim is a record that somebody works on.
type recordClaim struct {
	part     *segmentPart
	from     layout.Position // of the range that stands for the record, see spans
	size     uint32
	messages uint32
	cached   bool // by who appended it, who has a copy in memory
}

// sums is what a claimed record counts for.
func (c *recordClaim) sums() recordSums {
	s := recordSums{held: amountOf(c.part.cat.name, c.size, c.messages)}
	if c.cached {
		s.cached = s.held
	}
	return s
}

// recordPick is a record that is to be read.
type recordPick struct {
	seg   *segmentFile
	name  string
	entry layout.IndexEntry
}

func newBook(indexBytes int64) recordBook {
	return recordBook{
		categories: map[string]*categoryRecords{}, claims: map[layout.Position]recordClaim{}, strays: map[layout.Position]damagedClaim{},
		dropped: map[string]Amount{}, gone: map[goneKey]Amount{}, indexes: indexCache{limit: indexBytes},
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

// amountOf is the amount of one record.
func amountOf(name string, size, messages uint32) Amount {
	return Amount{Records: 1, Messages: int64(messages), Bytes: int64(size) - layout.RecordSize(len(name), 0)}
}

// maxSpace is at most what records of that amount take in a file.
func maxSpace(name string, a Amount) int64 {
	return a.Bytes + a.Records*(layout.RecordSize(len(name), 0)+layout.Align-1)
}

// categoryOf returns a category, made if it is not there.
func (b *recordBook) categoryOf(name string) *categoryRecords {
	c := b.categories[name]
	if c == nil {
		c = &categoryRecords{name: name}
		b.categories[name] = c
	}
	return c
}

// attachPart counts a part's held records, and puts it where it belongs in its category.
func (b *recordBook) attachPart(p *segmentPart) {
	if p.held.Records == 0 {
		return
	}
	c := b.categoryOf(p.cat.name)
	p.cat = c
	i := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].first > p.first })
	c.parts = slices.Insert(c.parts, i, p)
	c.plus(p.recordSums)
	b.sums.plus(p.recordSums)
	p.seg.held += p.held.Records
	p.seg.live += maxSpace(c.name, p.held)
}

// detachPart is the inverse of attach.
func (b *recordBook) detachPart(p *segmentPart) {
	if p.held.Records == 0 {
		return
	}
	c := p.cat
	c.minus(p.recordSums)
	b.sums.minus(p.recordSums)
	p.seg.held -= p.held.Records
	p.seg.live -= maxSpace(c.name, p.held)
	b.removePart(p)
}

// removePart takes a part with nothing to count out of its category.
func (b *recordBook) removePart(p *segmentPart) {
	c := p.cat
	if i := slices.Index(c.parts, p); i >= 0 {
		c.parts = slices.Delete(c.parts, i, i+1)
	}
	if len(c.parts) == 0 {
		delete(b.categories, c.name)
	}
}

// addRecord enters a record that was written to the segment that is appended to.
func (b *recordBook) addRecord(seg *segmentFile, name string, e layout.IndexEntry, claimed bool) {
	p := seg.names[name]
	if p == nil {
		p = &segmentPart{cat: b.categoryOf(name), seg: seg, first: e.Position, firstTime: e.Time, lastTime: e.Time}
		seg.names[name] = p
		seg.parts = append(seg.parts, p)
	}
	from := layout.At(seg.id.First, 0)
	if len(p.entries) > 0 {
		from = p.last + 1
	}
	if p.held.Records == 0 { // new, or everything before is finished and the category may be another one by now
		p.cat = b.categoryOf(name)
		p.cat.parts = append(p.cat.parts, p)
	}
	p.entries = append(p.entries, e)
	p.last, p.firstTime, p.lastTime = e.Position, min(p.firstTime, e.Time), max(p.lastTime, e.Time)
	a := amountOf(name, e.Size, e.Messages)
	seg.held++
	seg.live += maxSpace(name, a)
	if claimed {
		p.taken.addRange(from, e.Position+1)
		b.claims[e.Position] = recordClaim{part: p, from: from, size: e.Size, messages: e.Messages, cached: true}
		b.addSums(p, recordSums{held: a, cached: a})
		return
	}
	b.addSums(p, recordSums{held: a, unclaimed: a})
}

// addSums adds to the sums of a part, its category and the whole.
func (b *recordBook) addSums(p *segmentPart, s recordSums) {
	p.plus(s)
	p.cat.plus(s)
	b.sums.plus(s)
}

// subtractSums is the inverse of count.
func (b *recordBook) subtractSums(p *segmentPart, s recordSums) {
	p.minus(s)
	p.cat.minus(s)
	b.sums.minus(s)
}

// isReached reports whether no unclaimed record of a category stands at or before a position.
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
		first = p.taken[0].To // behind the record before the first unclaimed one
	}
	return first > upTo
}

// claimRecords takes records from the front of a category's backlog, up to a position, until they have maxBytes, and at least one. When the
// index that comes next is not in memory it stops; need is then the part to load, if nothing was taken before.
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
		if p.first > upTo {
			break
		}
		if p.entries == nil {
			if len(picks) > 0 {
				return picks, nil
			}
			return nil, p
		}
		b.indexes.touchIndex(p)
		full := false
		b.eachAvailable(p, func(i int, e *layout.IndexEntry) bool {
			a := amountOf(name, e.Size, e.Messages)
			if full = e.Position > upTo || len(picks) > 0 && total+a.Bytes > maxBytes; full {
				return false
			}
			total += a.Bytes
			from := p.rangeStart(i)
			p.taken.addRange(from, e.Position+1)
			b.claims[e.Position] = recordClaim{part: p, from: from, size: e.Size, messages: e.Messages}
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

// rangeStart is where the range of the entry begins that stands for it.
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

// claimOf returns the claim that a reference names.
func (b *recordBook) claimOf(ref Ref) (layout.Position, recordClaim, bool) {
	at := ref.Position()
	c, ok := b.claims[at]
	return at, c, ok && c.size == ref.Size
}

// releaseClaim makes a claimed record available again. One that was found damaged meanwhile is gone.
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
	p.cursor = 0 // each skips what is taken by ranges
	s := c.sums()
	b.addSums(p, recordSums{unclaimed: s.held})
	b.subtractSums(p, recordSums{cached: s.cached})
}

// endStray ends the claim of a record that was found damaged.
func (b *recordBook) endStray(ref Ref) (damagedClaim, bool) {
	x, ok := b.strays[ref.Position()]
	if ok = ok && x.size == ref.Size; ok {
		delete(b.strays, ref.Position())
		b.stray.minus(x.sums)
	}
	return x, ok
}

// loseClaim takes a claimed record away that is damaged. It counts as it did until its claim ends.
func (b *recordBook) loseClaim(at layout.Position, c recordClaim) Amount {
	x := damagedClaim{category: c.part.cat.name, size: c.size, sums: c.sums()}
	b.strays[at] = x
	b.stray.plus(x.sums)
	return b.finishClaim(at, c)
}

// noteGone counts what left the backlog for another reason than its claimant's word.
func (b *recordBook) noteGone(category, reason string, a Amount) {
	key := goneKey{category, reason}
	sum := b.gone[key]
	sum.plus(a)
	b.gone[key] = sum
}

// backlog is what is in the spool only: held, and not copied in memory.
func (b *recordBook) backlog() Amount {
	a := b.sums.backlog()
	a.plus(b.stray.backlog())
	return a
}

// finishClaim makes a claimed record done, and returns what it was.
func (b *recordBook) finishClaim(at layout.Position, c recordClaim) Amount {
	p := c.part
	delete(b.claims, at)
	p.done.addRange(c.from, at+1)
	s := c.sums()
	b.finishRecords(p, s)
	return s.held
}

// finishRecords counts records as finished that were held.
func (b *recordBook) finishRecords(p *segmentPart, s recordSums) {
	a := s.held
	b.subtractSums(p, s)
	p.finished.plus(a)
	p.seg.held -= a.Records
	p.seg.live -= maxSpace(p.cat.name, a)
	b.changes++
	if p.held.Records == 0 {
		b.removePart(p)
	}
}

// dropRecords takes available records from the front until atLeast bytes are gone and none is older than olderThan. need is a part whose
// index has to be loaded to go on.
func (b *recordBook) dropRecords(name string, atLeast, olderThan int64, reason string) (sum Amount, need *segmentPart) {
	c := b.categories[name]
	if c == nil {
		return sum, nil
	}
	for _, p := range slices.Clone(c.parts) {
		if p.unclaimed.Records == 0 {
			continue
		}
		if sum.Bytes >= atLeast && p.firstTime >= olderThan {
			break
		}
		if p.lastTime < olderThan || sum.Bytes+p.unclaimed.Bytes <= atLeast {
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

// dropPart takes everything that is available in a part. It needs no index: what is not taken is available.
func (b *recordBook) dropPart(p *segmentPart) Amount {
	a := p.unclaimed
	first, end := layout.At(p.seg.id.First, 0), p.last+1
	p.taken.eachGap(first, end, p.done.addRange)
	p.taken = append(p.taken[:0], layout.PositionRange{From: first, To: end})
	b.finishRecords(p, recordSums{held: a, unclaimed: a})
	return a
}

// dropSome takes available records of a part; more is false when it came to one that stays.
func (b *recordBook) dropSome(p *segmentPart, atLeast, olderThan int64) (sum Amount, more bool) {
	more = true
	b.indexes.touchIndex(p)
	b.eachAvailable(p, func(i int, e *layout.IndexEntry) bool {
		if more = sum.Bytes < atLeast || e.Time < olderThan; !more {
			return false
		}
		a := amountOf(p.cat.name, e.Size, e.Messages)
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

// describeQueue describes a category.
func (b *recordBook) describeQueue(name string) CategorySums {
	q := CategorySums{Category: name}
	if c := b.categories[name]; c != nil {
		q.Held, q.Unclaimed, q.Backlog, q.Last = c.held, c.unclaimed, c.backlog(), c.parts[len(c.parts)-1].last
		oldest := c.parts[0].firstTime
		for _, p := range c.parts { // clocks go back; the first is the oldest but for that
			oldest = min(oldest, p.firstTime)
		}
		q.Oldest = time.UnixMicro(oldest)
	}
	return q
}
