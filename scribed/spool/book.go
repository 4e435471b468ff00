package spool

import (
	"slices"
	"sort"
	"time"

	"scribe/scribed/spool/layout"
)

// book is what the spool knows of its records: a plain state machine without I/O, time or locks. The spool's mutex guards it.
//
// A record is in one of three states. It is available (in its part, not in taken), claimed (in taken and in claims) or finished (in
// taken and in done). The sums of the parts, categories and segments are of those that are not finished.
type book struct {
	categories map[string]*category // those with held records
	claims     map[layout.Position]claim
	// strays are claimed records that were found damaged: what becomes of them is decided when their claim ends.
	strays  map[layout.Position]stray
	stray   sums
	sums    sums
	dropped map[string]Amount // since the folder was made
	gone    map[goneKey]Amount
	// changes counts what the state file should learn of.
	changes uint64
	indexes indexes
}

// category is what is held of one.
type category struct {
	name  string
	parts []*part // with held records, in order
	sums
}

// sums are of records that are held: all, those that nobody claimed, and those of which whoever appended them has a copy in memory.
// held without cached is the backlog.
type sums struct{ held, unclaimed, cached Amount }

func (s *sums) plus(o sums) {
	s.held.plus(o.held)
	s.unclaimed.plus(o.unclaimed)
	s.cached.plus(o.cached)
}

func (s *sums) minus(o sums) {
	s.held.minus(o.held)
	s.unclaimed.minus(o.unclaimed)
	s.cached.minus(o.cached)
}

func (s *sums) backlog() Amount {
	a := s.held
	a.minus(s.cached)
	return a
}

// goneKey is of what, and why, records left the backlog that nobody had claimed.
type goneKey struct{ category, reason string }

// stray is a claimed record that is damaged.
type stray struct {
	category string
	size     uint32
	sums     sums
}

// part is what a segment has of a category.
type part struct {
	cat *category
	seg *segment

	sums
	// finished is what is done of what the segment's index has. held and finished make the whole index.
	finished            Amount
	firstTime, lastTime int64
	first, last         layout.Position
	// taken is what is not available: what is claimed, and done, which is a part of it.
	taken, done spans

	// entries is the index, nil when it is not in memory. It is, and is not in the cache, while the segment has no footer.
	entries []layout.Entry
	cached  *cachedIndex
	// Entries before cursor are not available.
	cursor int
	// Where the index is in the segment's footer.
	indexOffset, indexLen, indexCRC uint32
}

// claim is a record that somebody works on.
type claim struct {
	part     *part
	from     layout.Position // of the range that stands for the record, see spans
	size     uint32
	messages uint32
	cached   bool // by who appended it, who has a copy in memory
}

// sums is what a claimed record counts for.
func (c *claim) sums() sums {
	s := sums{held: amountOf(c.part.cat.name, c.size, c.messages)}
	if c.cached {
		s.cached = s.held
	}
	return s
}

// pick is a record that is to be read.
type pick struct {
	seg   *segment
	name  string
	entry layout.Entry
}

func newBook(indexBytes int64) book {
	return book{
		categories: map[string]*category{}, claims: map[layout.Position]claim{}, strays: map[layout.Position]stray{},
		dropped: map[string]Amount{}, gone: map[goneKey]Amount{}, indexes: indexes{limit: indexBytes},
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

// space is at most what records of that amount take in a file.
func space(name string, a Amount) int64 {
	return a.Bytes + a.Records*(layout.RecordSize(len(name), 0)+layout.Align-1)
}

// category returns a category, made if it is not there.
func (b *book) category(name string) *category {
	c := b.categories[name]
	if c == nil {
		c = &category{name: name}
		b.categories[name] = c
	}
	return c
}

// attach counts a part's held records, and puts it where it belongs in its category.
func (b *book) attach(p *part) {
	if p.held.Records == 0 {
		return
	}
	c := b.category(p.cat.name)
	p.cat = c
	i := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].first > p.first })
	c.parts = slices.Insert(c.parts, i, p)
	c.plus(p.sums)
	b.sums.plus(p.sums)
	p.seg.held += p.held.Records
	p.seg.live += space(c.name, p.held)
}

// detach is the inverse of attach.
func (b *book) detach(p *part) {
	if p.held.Records == 0 {
		return
	}
	c := p.cat
	c.minus(p.sums)
	b.sums.minus(p.sums)
	p.seg.held -= p.held.Records
	p.seg.live -= space(c.name, p.held)
	b.forget(p)
}

// forget takes a part with nothing to count out of its category.
func (b *book) forget(p *part) {
	c := p.cat
	if i := slices.Index(c.parts, p); i >= 0 {
		c.parts = slices.Delete(c.parts, i, i+1)
	}
	if len(c.parts) == 0 {
		delete(b.categories, c.name)
	}
}

// append enters a record that was written to the segment that is appended to.
func (b *book) append(seg *segment, name string, e layout.Entry, claimed bool) {
	p := seg.names[name]
	if p == nil {
		p = &part{cat: b.category(name), seg: seg, first: e.Position, firstTime: e.Time, lastTime: e.Time}
		seg.names[name] = p
		seg.parts = append(seg.parts, p)
	}
	from := layout.At(seg.id.First, 0)
	if len(p.entries) > 0 {
		from = p.last + 1
	}
	if p.held.Records == 0 { // new, or everything before is finished and the category may be another one by now
		p.cat = b.category(name)
		p.cat.parts = append(p.cat.parts, p)
	}
	p.entries = append(p.entries, e)
	p.last, p.firstTime, p.lastTime = e.Position, min(p.firstTime, e.Time), max(p.lastTime, e.Time)
	a := amountOf(name, e.Size, e.Messages)
	seg.held++
	seg.live += space(name, a)
	if claimed {
		p.taken.add(from, e.Position+1)
		b.claims[e.Position] = claim{part: p, from: from, size: e.Size, messages: e.Messages, cached: true}
		b.count(p, sums{held: a, cached: a})
		return
	}
	b.count(p, sums{held: a, unclaimed: a})
}

// count adds to the sums of a part, its category and the whole.
func (b *book) count(p *part, s sums) {
	p.plus(s)
	p.cat.plus(s)
	b.sums.plus(s)
}

// discount is the inverse of count.
func (b *book) discount(p *part, s sums) {
	p.minus(s)
	p.cat.minus(s)
	b.sums.minus(s)
}

// reached reports whether no unclaimed record of a category stands at or before a position.
func (b *book) reached(name string, upTo layout.Position) bool {
	c := b.categories[name]
	if c == nil {
		return true
	}
	i := slices.IndexFunc(c.parts, func(p *part) bool { return p.unclaimed.Records > 0 })
	if i < 0 {
		return true
	}
	p := c.parts[i]
	first := layout.At(p.seg.id.First, 0)
	if p.entries != nil {
		b.each(p, func(_ int, e *layout.Entry) bool { first = e.Position; return false })
	} else if len(p.taken) > 0 && p.taken[0].From <= first {
		first = p.taken[0].To // behind the record before the first unclaimed one
	}
	return first > upTo
}

// claim takes records from the front of a category's backlog, up to a position, until they have maxBytes, and at least one. When the
// index that comes next is not in memory it stops; need is then the part to load, if nothing was taken before.
func (b *book) claim(name string, maxBytes int64, upTo layout.Position) (picks []pick, need *part) {
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
		b.indexes.touch(p)
		full := false
		b.each(p, func(i int, e *layout.Entry) bool {
			a := amountOf(name, e.Size, e.Messages)
			if full = e.Position > upTo || len(picks) > 0 && total+a.Bytes > maxBytes; full {
				return false
			}
			total += a.Bytes
			from := p.from(i)
			p.taken.add(from, e.Position+1)
			b.claims[e.Position] = claim{part: p, from: from, size: e.Size, messages: e.Messages}
			b.discount(p, sums{unclaimed: a})
			picks = append(picks, pick{seg: p.seg, name: name, entry: *e})
			return true
		})
		if full {
			break
		}
	}
	return picks, nil
}

// from is where the range of the entry begins that stands for it.
func (p *part) from(i int) layout.Position {
	if i == 0 {
		return layout.At(p.seg.id.First, 0)
	}
	return p.entries[i-1].Position + 1
}

// each calls fn with the available entries in order, until it returns false. fn may take the entry.
func (b *book) each(p *part, fn func(i int, e *layout.Entry) bool) {
	for i := p.cursor; i < len(p.entries) && p.unclaimed.Records > 0; {
		e := &p.entries[i]
		if r := p.taken.find(e.Position); r < len(p.taken) && p.taken[r].From <= e.Position {
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
func (b *book) claimOf(ref Ref) (layout.Position, claim, bool) {
	at := ref.Position()
	c, ok := b.claims[at]
	return at, c, ok && c.size == ref.Size
}

// release makes a claimed record available again. One that was found damaged meanwhile is gone.
func (b *book) release(ref Ref) {
	at, c, ok := b.claimOf(ref)
	if !ok {
		if x, ok := b.endStray(ref); ok {
			b.noteGone(x.category, Damaged, x.sums.held)
		}
		return
	}
	p := c.part
	delete(b.claims, at)
	p.taken.remove(c.from, at+1)
	p.cursor = 0 // each skips what is taken by ranges
	s := c.sums()
	b.count(p, sums{unclaimed: s.held})
	b.discount(p, sums{cached: s.cached})
}

// endStray ends the claim of a record that was found damaged.
func (b *book) endStray(ref Ref) (stray, bool) {
	x, ok := b.strays[ref.Position()]
	if ok = ok && x.size == ref.Size; ok {
		delete(b.strays, ref.Position())
		b.stray.minus(x.sums)
	}
	return x, ok
}

// lose takes a claimed record away that is damaged. It counts as it did until its claim ends.
func (b *book) lose(at layout.Position, c claim) Amount {
	x := stray{category: c.part.cat.name, size: c.size, sums: c.sums()}
	b.strays[at] = x
	b.stray.plus(x.sums)
	return b.finish(at, c)
}

// noteGone counts what left the backlog for another reason than its claimant's word.
func (b *book) noteGone(category, reason string, a Amount) {
	key := goneKey{category, reason}
	sum := b.gone[key]
	sum.plus(a)
	b.gone[key] = sum
}

// backlog is what is in the spool only: held, and not copied in memory.
func (b *book) backlog() Amount {
	a := b.sums.backlog()
	a.plus(b.stray.backlog())
	return a
}

// finish makes a claimed record done, and returns what it was.
func (b *book) finish(at layout.Position, c claim) Amount {
	p := c.part
	delete(b.claims, at)
	p.done.add(c.from, at+1)
	s := c.sums()
	b.settle(p, s)
	return s.held
}

// settle counts records as finished that were held.
func (b *book) settle(p *part, s sums) {
	a := s.held
	b.discount(p, s)
	p.finished.plus(a)
	p.seg.held -= a.Records
	p.seg.live -= space(p.cat.name, a)
	b.changes++
	if p.held.Records == 0 {
		b.forget(p)
	}
}

// drop takes available records from the front until atLeast bytes are gone and none is older than olderThan. need is a part whose
// index has to be loaded to go on.
func (b *book) drop(name string, atLeast, olderThan int64, reason string) (sum Amount, need *part) {
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
func (b *book) dropPart(p *part) Amount {
	a := p.unclaimed
	first, end := layout.At(p.seg.id.First, 0), p.last+1
	p.taken.gaps(first, end, p.done.add)
	p.taken = append(p.taken[:0], layout.Span{From: first, To: end})
	b.settle(p, sums{held: a, unclaimed: a})
	return a
}

// dropSome takes available records of a part; more is false when it came to one that stays.
func (b *book) dropSome(p *part, atLeast, olderThan int64) (sum Amount, more bool) {
	more = true
	b.indexes.touch(p)
	b.each(p, func(i int, e *layout.Entry) bool {
		if more = sum.Bytes < atLeast || e.Time < olderThan; !more {
			return false
		}
		a := amountOf(p.cat.name, e.Size, e.Messages)
		from := p.from(i)
		p.taken.add(from, e.Position+1)
		p.done.add(from, e.Position+1)
		sum.plus(a)
		return true
	})
	if sum.Records > 0 {
		b.settle(p, sums{held: sum, unclaimed: sum})
	}
	return sum, more
}

// queue describes a category.
func (b *book) queue(name string) Queue {
	q := Queue{Category: name}
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
