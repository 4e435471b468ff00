package producer

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/placement"
)

// ShardZero is the value of Message.Shard for logical shard 0 where 0 leaves the choice to the category: see [Message].
const ShardZero = math.MaxUint32

// Partitioner chooses the logical shard of a message: a number below shards. The producer calls it once or more for each message,
// concurrently, before it copies the message. It must not keep or change the message, block, or call the producer.
type Partitioner func(category string, shards uint32, m *Message) uint32

// WithPartitioner sets a function that places messages, in categories in which writers may: all but those that place by key or
// field. Messages with a Shard other than 0 are not passed to it. Until the producer knows the number of shards, calls that wait do,
// and others fail with [ErrUnavailable].
func WithPartitioner(fn Partitioner) Option { return func(c *producerConfig) { c.partitioner = fn } }

// WithCategories sets who says how categories place messages; by default it is the server. With [WithService] and without this,
// messages go to the shard that the caller gives, and servers place those of other categories.
func WithCategories(source CategorySource) Option {
	return func(c *producerConfig) { c.categories = source }
}

// WithCategoryRefresh sets how often the producer asks whether a category that it writes to places messages differently, give or take
// a fifth; the default is [DefaultCategoryRefresh]. Until it knows, its messages go where they belonged before.
func WithCategoryRefresh(every time.Duration) Option {
	return func(c *producerConfig) { c.categoryRefresh = every }
}

// placing is how messages of a category are placed. It is immutable.
type placing struct {
	layout      *placement.Layout // nil unless by key or field
	tag         uint32            // of the layout
	shards      uint32
	sticky      bool        // messages that nothing else places go to the sticky shard
	partitioner Partitioner // nil = none
	exactlyOnce bool
	// generation counts the placings of the category, from 1.
	generation uint64
}

// samePlacing reports whether two placings put messages into the same shards.
func samePlacing(a, b *placing) bool {
	if !a.choosesShard() || !b.choosesShard() {
		return a.choosesShard() == b.choosesShard()
	}
	return a.tag == b.tag && a.shards == b.shards && a.sticky == b.sticky && a.exactlyOnce == b.exactlyOnce
}

// choosesShard reports whether messages whose callers give no shard may go elsewhere than to shard 0.
func (p *placing) choosesShard() bool {
	return p != nil && (p.layout != nil || p.sticky || p.partitioner != nil)
}

// placesByValue reports whether messages are placed by their key or field.
func (p *placing) placesByValue() bool { return p != nil && p.layout != nil }

// keepsOrder reports whether messages that belong together are placed together, so that their order across a switch counts.
func (p *placing) keepsOrder() bool { return p != nil && (p.layout != nil || p.partitioner != nil) }

// generationOf returns the generation of a placing; 0 of none.
func generationOf(p *placing) uint64 {
	if p == nil {
		return 0
	}
	return p.generation
}

// tagOf returns the tag of frames of a placing; 0 of none.
func tagOf(p *placing) uint32 {
	if p == nil {
		return 0
	}
	return p.tag
}

// stickyShard is where a category's messages go for now.
type stickyShard struct {
	sync.Mutex
	shard uint32
	bytes int
	since time.Time
}

// chooseSticky returns the shard for a message of n bytes: the same for a batch, then the next one.
func (c *sharedCore) chooseSticky(cat *categoryState, p *placing, n int, now time.Time) uint32 {
	if p.exactlyOnce {
		// A producer that continues another one divides the messages into batches differently. It must place them alike, since
		// duplicates are recognised by shard.
		var id [8]byte
		binary.LittleEndian.PutUint64(id[:], c.id)
		return placement.Shard(placement.Hash(id[:]), p.shards)
	}
	s := &cat.sticky
	s.Lock()
	defer s.Unlock()
	if age := now.Sub(s.since); s.bytes+n > c.cfg.batchBytes || age >= c.cfg.linger || age < 0 {
		s.shard++
		s.bytes, s.since = 0, now
	}
	s.bytes += n
	return s.shard % p.shards
}

// givenShard returns the shard that a caller gave.
func givenShard(shard uint32) uint32 {
	if shard == ShardZero {
		return 0
	}
	return shard
}

// placeMessage returns the shard of a message, and how it was placed.
func (c *sharedCore) placeMessage(cat *categoryState, m *Message, scratch *placement.Scratch, now time.Time) (shard uint32, p *placing, err error) {
	if cat == nil {
		return givenShard(m.Shard), nil, nil
	}
	if p = cat.placing.Load(); !p.choosesShard() {
		if c.cfg.partitioner != nil && !cat.known.Load() && m.Shard == 0 {
			return 0, nil, fmt.Errorf("%w: the number of shards of category %s is not known", ErrUnavailable, cat.name)
		}
		return givenShard(m.Shard), p, nil
	}
	shard, placed, err := c.placeBy(cat, p, m, scratch)
	if err == nil && !placed {
		shard = c.chooseSticky(cat, p, m.Size(), now)
	}
	return shard, p, err
}

// placeBy returns the shard of a message that does not go to the sticky one.
func (c *sharedCore) placeBy(cat *categoryState, p *placing, m *Message, scratch *placement.Scratch) (shard uint32, placed bool, err error) {
	switch {
	case p.layout != nil:
		if m.Shard != 0 {
			return 0, false, errGivenShard(cat, p, m.Shard)
		}
		if scratch == nil { // the category has begun to just now
			scratch = new(placement.Scratch)
		}
		shard, placed = p.layout.Place(m.Key, m.Payload, scratch)
		return shard, placed, nil
	case m.Shard != 0:
		return givenShard(m.Shard), true, nil
	case p.partitioner != nil:
		if shard = p.partitioner(cat.name, p.shards, m); shard >= p.shards {
			return 0, false, fmt.Errorf("%w: the partitioner chose logical shard %d of category %s, which has %d", ErrInvalid, shard, cat.name, p.shards)
		}
		return shard, true, nil
	}
	return 0, false, nil
}

// errGivenShard is the error of a call that names a shard where messages have theirs.
func errGivenShard(cat *categoryState, p *placing, shard uint32) error {
	return fmt.Errorf("%w: category %s places messages by %s: leave the shard, %d, at 0", ErrInvalid, cat.name, p.layout, givenShard(shard))
}

// placeTogether returns the shard of the messages of an atomic batch, whose Shard fields do not count.
func (c *sharedCore) placeTogether(cat *categoryState, p *placing, given uint32, msgs []Message, now time.Time) (shard uint32, err error) {
	if !p.choosesShard() {
		return givenShard(given), nil
	}
	var (
		scratch placement.Scratch
		size    int
		found   bool
	)
	for i := range msgs {
		m := msgs[i]
		m.Shard = given
		size += m.Size()
		at, placed, err := c.placeBy(cat, p, &m, &scratch)
		switch {
		case err != nil:
			return 0, err
		case placed && found && at != shard:
			return 0, fmt.Errorf("%w: the messages of an atomic batch belong to logical shards %d and %d of category %s: write a batch for each", ErrInvalid, shard, at, cat.name)
		case placed:
			shard, found = at, true
		}
	}
	if !found {
		shard = c.chooseSticky(cat, p, size, now)
	}
	return shard, nil
}

// placeRows returns the shard of the rows of a frame. It is errMoved if they were not divided by the layout of the category.
func (c *sharedCore) placeRows(cat *categoryState, p *placing, rows ArrowRows, size int, now time.Time) (shard uint32, err error) {
	var layout *placement.Layout
	if p != nil {
		layout = p.layout
	}
	switch {
	case rows.Layout != layout && (rows.Layout != nil || layout.Kind() == placement.ByField):
		return 0, errMoved
	case layout == nil && rows.Shard != 0 || !p.choosesShard():
		return givenShard(rows.Shard), nil
	case layout != nil && rows.Layout == nil && rows.Shard != 0:
		return 0, errGivenShard(cat, p, rows.Shard)
	case rows.Layout != nil:
		return rows.Shard, nil
	case p.partitioner != nil:
		return 0, fmt.Errorf("%w: a partitioner places messages, not rows: give the shard", ErrInvalid)
	}
	return c.chooseSticky(cat, p, size, now), nil // rows have no key
}

// switchPlacing makes a placing the category's, and reports whether that was possible: not while an earlier switch is under way.
//
// A message with the same key may go to another shard from now on, and must not be stored before those that were accepted earlier.
// So frames of the new generation wait until all frames of earlier ones have an outcome. An agent that gives one before they are stored
// tells them apart by their tags.
func (d *categoryDirectory) switchPlacing(cat *categoryState, p *placing) bool {
	c, old := d.core, cat.placing.Load()
	if samePlacing(old, p) {
		return true
	}
	if cat.sent.Load() != generationOf(old) {
		return false
	}
	if p == nil {
		p = &placing{shards: math.MaxUint32} // as callers say, from this generation on
	}
	p.generation = generationOf(old) + 1
	ordered := p.keepsOrder() || old.keepsOrder()
	if !ordered {
		cat.sent.Store(p.generation)
	}
	d.mu.Lock()
	cat.preparing = ordered
	d.mu.Unlock()
	cat.placing.Store(p)
	if !ordered {
		return true
	}
	// Who has read the old placing holds the mutex of a stripe until its message is in a frame.
	for i := range c.stripes {
		c.stripes[i].mu.Lock()
		c.stripes[i].mu.Unlock() //nolint:staticcheck // to wait for those who hold it
	}
	d.mu.Lock()
	cat.draining, cat.preparing = slices.Clone(cat.streams), false
	d.mu.Unlock()
	d.continueSwitch(cat)
	return true
}

// continueSwitch ends the switch of a category if no frame of an earlier generation is left.
func (d *categoryDirectory) continueSwitch(cat *categoryState) {
	now := generationOf(cat.placing.Load())
	d.mu.Lock()
	draining, preparing := cat.draining, cat.preparing
	d.mu.Unlock()
	if preparing {
		return
	}
	var left []*shardStream
	for _, s := range draining {
		if d.core.hasOlderFrames(s, now) {
			left = append(left, s)
		}
	}
	d.mu.Lock()
	// Another goroutine may have found fewer meanwhile, or the next switch may have begun.
	if cat.preparing || cat.sent.Load() >= now || generationOf(cat.placing.Load()) != now {
		d.mu.Unlock()
		return
	}
	cat.draining = left
	var held []*shardStream
	if len(left) == 0 {
		cat.sent.Store(now)
		held = cat.streams
	}
	d.mu.Unlock()
	for _, s := range held {
		s.stripe.mu.Lock()
		d.core.scheduleStream(s)
		s.stripe.mu.Unlock()
	}
}

// hasOlderFrames reports whether a stream has frames of an earlier generation without an outcome. It seals an open one.
func (c *sharedCore) hasOlderFrames(s *shardStream, now uint64) bool {
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	if f := s.open; f != nil && generationOf(f.placing) < now {
		c.sealFrame(s, false)
		c.scheduleStream(s)
	}
	older := func(f *outFrame) bool { return generationOf(f.placing) < now }
	if slices.ContainsFunc(s.flights, func(fl *streamFlight) bool { return slices.ContainsFunc(fl.frames, older) }) {
		return true
	}
	return s.head != nil && older(s.head)
}

// mayPass reports whether a frame may be sent, as far as the placing of its category is concerned. The stripe's mutex is held.
func (s *shardStream) mayPass(f *outFrame) bool {
	return s.category == nil || generationOf(f.placing) <= s.category.sent.Load()
}
