package pebblelog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// isHandedOver reports whether a shard is in another engine, or will be created there if it does not exist.
func isHandedOver(st schema.State) bool { return st.Moved != nil && st.Moved.To != "" }

// addMoved adds to a state what it has of other engines.
func addMoved(st *metalog.State, m *schema.Moved) {
	st.Begin, st.Adopted, st.MovedFrom, st.MovedTo = m.Begin, m.Adopted, m.From, m.To
	if m.To != "" { // the other engine's clock may be behind this one's
		st.Watermark = min(st.Watermark, m.Left)
	}
	for _, s := range m.Earlier {
		if s.First < s.Next {
			st.FirstLSN = s.First
			break
		}
	}
}

// oldestLSN returns the LSN of the oldest record of a shard in this engine.
func oldestLSN(s schema.State) record.LSN { return publicState(0, s, 0).FirstLSN }

// trimmedBelow returns the LSN below which a shard that moved was trimmed.
func trimmedBelow(st schema.State) record.LSN {
	if st.Moved == nil {
		return 0
	}
	return st.Moved.Trimmed
}

// shardPart is a run of records of a shard that this engine has: from first to before next.
type shardPart struct {
	first, next record.LSN
	// to is the engine that has what follows, empty if it is this one. left is the time of the handover, 0 if it is not known.
	to   string
	left int64
}

// partAt returns the run that a reader at an LSN reads. If that is in another engine, the run is empty and ends there.
//
// A reader that finds neither its LSN nor what follows in an engine goes to the one that had the shard before: that has the LSN, or knows that it was
// trimmed, or sends the reader further back. Nobody sends it forth and back, since an engine forgets a stay only when it is trimmed, and then says so.
func partAt(st schema.State, at record.LSN) shardPart {
	m := st.Moved
	switch {
	case m == nil:
		return shardPart{first: st.First, next: st.Next}
	case at >= m.Begin:
		return shardPart{first: max(st.First, m.Begin), next: max(st.Next, absentEnd(st, at)), to: m.To, left: m.Left}
	case at < m.Trimmed:
		return shardPart{first: m.Trimmed, next: m.Trimmed}
	}
	for i := range m.Earlier {
		s := &m.Earlier[i]
		switch {
		case at > s.Next:
		case at < s.Begin:
			return shardPart{first: at, next: at, to: s.From}
		case at < s.Next:
			return shardPart{first: s.First, next: s.Next, to: s.To, left: s.Left}
		case i+1 < len(m.Earlier) && m.Earlier[i+1].Begin <= at: // a later stay goes on where this one ends
		default:
			return shardPart{first: at, next: at, to: s.To, left: s.Left}
		}
	}
	return shardPart{first: at, next: at, to: m.From}
}

// absentEnd returns where a reader of a shard stands that does not exist and is created in another engine: at its end, wherever that is.
func absentEnd(st schema.State, at record.LSN) record.LSN {
	if st.Epoch == 0 {
		return at
	}
	return 0
}

// partSince returns the first run with a record at or after a time, or the empty one at the tail.
func partSince(st schema.State, t int64) shardPart {
	if st.Moved != nil {
		for _, s := range st.Moved.Earlier {
			if s.First < s.Next && t <= s.LastTime {
				return shardPart{first: s.First, next: s.Next}
			}
		}
	}
	if t > st.LastTime {
		return shardPart{first: st.Next, next: st.Next}
	}
	return shardPart{first: st.First, next: st.Next}
}

// stays returns the stays of a shard that exists.
func stays(st schema.State) []metalog.Stay {
	m := movedOf(st.Moved)
	var out []metalog.Stay
	for _, s := range append(slices.Clone(m.Earlier), currentStay(st)) {
		begin := s.Begin
		if begin == 0 {
			begin = max(record.FirstLSN, st.Origin)
		}
		out = append(out, metalog.Stay{
			Begin: begin, FirstLSN: s.First, NextLSN: s.Next, Epoch: s.Epoch, Adopted: s.Adopted, LastTime: s.LastTime,
			MovedFrom: s.From, MovedTo: s.To, Left: s.Left,
		})
	}
	return out
}

// movedOf returns a copy of what a state has of other engines.
func movedOf(m *schema.Moved) schema.Moved {
	if m == nil {
		return schema.Moved{}
	}
	return *m
}

// currentStay returns the newest stay of a shard.
func currentStay(st schema.State) schema.Stay {
	s := movedOf(st.Moved).Stay
	s.First, s.Next, s.Epoch, s.LastTime = st.First, st.Next, st.Epoch, st.LastTime
	return s
}

// MoveOut implements metalog.Log.
func (e *Engine) MoveOut(ctx context.Context, shard record.ShardID, from, to string) (metalog.Handover, error) {
	o := &moveOutOp{shard: shard, from: from, to: to}
	if err := e.runOp(ctx, metalog.ValidateMoveOut(shard, from, to), o); err != nil {
		return metalog.Handover{}, err
	}
	if !o.handedOver {
		return o.out, nil
	}
	e.metrics.moves.WithLabelValues("out").Inc()
	e.opts.Logger.InfoContext(ctx, "shard handed over", "shard", shard.String(), "to", to, "next", o.out.NextLSN, "epoch", o.out.Epoch, "producers", o.out.Producers)
	return o.out, nil
}

type moveOutOp struct {
	shard    record.ShardID
	from, to string
	out      metalog.Handover
	// handedOver says that it was not before.
	handedOver bool
}

func (o *moveOutOp) stage(c *logCommitter) error {
	sh, st, err := c.e.table.currentState(o.shard)
	if err != nil {
		return err
	}
	if st.Epoch == 0 {
		st = c.absentState(o.shard)
	}
	switch {
	case c.retired.holds(o.shard.Category()):
		return refusalError([]metalog.Refusal{{Err: metalog.ErrSealed, State: publicState(o.shard, st, c.now)}})
	case isHandedOver(st) && (st.Epoch == 0 || st.Moved.To != o.to):
		return &metalog.ElsewhereError{Shard: o.shard, LSN: st.Next, Engine: st.Moved.To}
	case st.Epoch == 0:
		return fmt.Errorf("%w: shard %v does not exist: it can't move", metalog.ErrInvalid, o.shard)
	}
	producers, err := c.countProducers(o.shard)
	if err != nil {
		return err
	}
	if !isHandedOver(st) {
		if producers > metalog.MaxMovedProducers {
			return fmt.Errorf("%w: shard %v knows more than %d producers: it can't move", metalog.ErrInvalid, o.shard, metalog.MaxMovedProducers)
		}
		m := movedOf(st.Moved)
		if st.Moved == nil && st.First > record.FirstLSN {
			m.Trimmed = st.First
		}
		m.To, m.Left = o.to, c.now
		sh.cur.Moved = &m
		sh.cur.Epoch++ // whoever opened it last must not go on
		c.markDirty(sh)
		o.handedOver = true
	}
	st = sh.cur
	o.out = metalog.Handover{
		Shard: o.shard, From: o.from, To: o.to, NextLSN: st.Next, Epoch: st.Epoch, LastTime: st.LastTime, Time: st.Moved.Left, Sealed: st.Sealed,
		Producers: producers,
	}
	return nil
}

// countProducers returns how many producers a shard knows, and not much more than the limit of a move if they are more. Its duration is proportional to
// that.
func (c *logCommitter) countProducers(shard record.ShardID) (n int, err error) {
	fresh := make(map[uint64]bool) // those that only the batch being built has
	for k := range c.producers {
		if k.shard == shard {
			fresh[k.producer] = true
		}
	}
	if c.replaced[shard] {
		return len(fresh), nil
	}
	low, high := schema.ShardBounds(schema.KindProducer, shard)
	for it, err := range keysBetween(c.e.db, low, high, seekNextKey) {
		var id uint64
		if err == nil {
			id, err = schema.ProducerKeyID(it.Key())
		}
		if err != nil {
			return 0, readError(shard, 0, err)
		}
		delete(fresh, id)
		if n++; n > metalog.MaxMovedProducers {
			break
		}
	}
	return n + len(fresh), nil
}

// MovedProducers implements metalog.Log.
func (e *Engine) MovedProducers(ctx context.Context, shard record.ShardID, epoch, first uint64, limit int) ([]metalog.MovedProducer, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	w, _, _ := e.clock.watermark()
	st, err := e.table.stateOf(shard)
	if err != nil {
		return nil, err
	}
	// One view has both: when the shard comes back, what it knows is replaced before that is published.
	view := e.db.NewSnapshot()
	defer func() { _ = view.Close() }()
	seen, _, err := lookUp(view, schema.AppendStateKey(nil, shard), schema.DecodeState)
	if err != nil {
		return nil, readError(shard, 0, err)
	}
	if !isHandedOver(st) || st.Epoch != epoch || !isHandedOver(seen) || seen.Epoch != epoch {
		return nil, refusalError([]metalog.Refusal{{Err: metalog.ErrFenced, State: publicState(shard, st, w)}})
	}
	var out []metalog.MovedProducer
	_, high := schema.ShardBounds(schema.KindProducer, shard)
	for it, err := range keysBetween(view, schema.AppendProducerKey(nil, shard, first), high, (*pebble.Iterator).Next) {
		if len(out) == metalog.ProducersLimit(limit) {
			break
		}
		p, err := movedProducer(it, err)
		if err != nil {
			return nil, readError(shard, 0, fmt.Errorf("producers of a shard that moves: %w", err))
		}
		out = append(out, p)
	}
	return out, nil
}

// movedProducer reads the producer at an iterator, unless that has failed.
func movedProducer(it *pebble.Iterator, failed error) (p metalog.MovedProducer, err error) {
	if failed != nil {
		return p, failed
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return p, err
	}
	known, err := schema.DecodeProducer(it.Key(), value)
	if err != nil {
		return p, err
	}
	id, err := schema.ProducerKeyID(it.Key())
	state := metalog.ProducerState{Producer: id, Epoch: known.Epoch, Next: known.Next}
	return metalog.MovedProducer{ProducerState: state, LSN: known.LSN, Time: known.Time}, err
}

// MoveIn implements metalog.Log.
func (e *Engine) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (metalog.State, error) {
	o := &moveInOp{h: h, producers: producers}
	if err := e.runOp(ctx, metalog.ValidateMoveIn(h, producers), o); err != nil {
		return metalog.State{}, err
	}
	if o.adopted {
		e.metrics.moves.WithLabelValues("in").Inc()
		e.opts.Logger.InfoContext(ctx, "shard adopted", "shard", h.Shard.String(), "from", h.From, "next", h.NextLSN, "epoch", h.Epoch, "producers", h.Producers)
	}
	return o.out, nil
}

type moveInOp struct {
	h         metalog.Handover
	producers []metalog.MovedProducer
	out       metalog.State
	adopted   bool
}

func (o *moveInOp) entrySize() int { return stateChange + len(o.producers)*producerChange }

func (o *moveInOp) stage(c *logCommitter) error {
	h := &o.h
	sh, st, err := c.e.table.currentState(h.Shard)
	if err != nil {
		return err
	}
	m, exists := movedOf(st.Moved), st.Epoch != 0
	var why error
	switch {
	case c.retired.holds(h.Shard.Category()):
		why = metalog.ErrSealed
	case exists && m.Adopted >= h.Epoch: // it came with this handover, or with a later one
		o.out = publicState(h.Shard, st, c.now)
		return nil
	case exists && (!isHandedOver(st) || h.Epoch <= st.Epoch || h.NextLSN < st.Next || h.LastTime < st.LastTime):
		why = metalog.ErrConflict
	}
	if why != nil {
		return refusalError([]metalog.Refusal{{Err: why, State: publicState(h.Shard, st, c.now)}})
	}
	if exists && m.Trimmed < st.Next { // an empty stay, too, says that what is below was elsewhere before
		if len(m.Earlier) >= metalog.MaxStays {
			return fmt.Errorf("%w: the engine has %d earlier stays of shard %v: trim it first", metalog.ErrInvalid, len(m.Earlier), h.Shard)
		}
		m.Earlier = append(slices.Clone(m.Earlier), currentStay(st))
	}
	if err := c.raiseClock(h.Time); err != nil {
		return err
	}
	if sh == nil {
		sh = c.e.table.createShard(h.Shard)
	}
	if !exists {
		st.Origin = 0 // its records of before a recovery are not what comes
	}
	m.Stay = schema.Stay{Begin: h.NextLSN, Adopted: h.Epoch, From: h.From}
	sh.cur = schema.State{First: h.NextLSN, Next: h.NextLSN, Epoch: h.Epoch, LastTime: h.LastTime, Sealed: h.Sealed, Origin: st.Origin, Moved: &m}
	c.markDirty(sh)
	c.replaceProducers(h.Shard, o.producers)
	o.out, o.adopted = publicState(h.Shard, sh.cur, c.now), true
	return nil
}

// replaceProducers makes a shard know these producers, and no others.
func (c *logCommitter) replaceProducers(shard record.ShardID, producers []metalog.MovedProducer) {
	for _, k := range c.known.Keys() {
		if k.shard == shard {
			c.known.Remove(k)
		}
	}
	c.replaced[shard] = true
	maps.DeleteFunc(c.producers, func(k producerKey, _ schema.Producer) bool { return k.shard == shard })
	low, high := schema.ShardBounds(schema.KindProducer, shard)
	_ = c.batch.DeleteRange(low, high, nil) // a batch without an index fails only when it is closed
	for _, p := range producers {           // written at the end of the batch, and found by later calls of it
		c.producers[producerKey{shard, p.Producer}] = schema.Producer{Epoch: p.Epoch, Next: p.Next, LSN: p.LSN, Time: p.Time}
	}
}

// raiseClock puts the engine's clock forward to a time that another engine's clock had.
func (c *logCommitter) raiseClock(t int64) error {
	if t > c.now && t-c.now > metalog.MaxClockJump.Microseconds() {
		return &metalog.ClockError{Time: t, Clock: c.now}
	}
	if t > c.now {
		c.now = c.e.clock.raiseBatch(t)
	}
	return nil
}

// trimMoved trims a shard that has moved.
func (c *logCommitter) trimMoved(sh *shardEntry, before record.LSN) error {
	st := sh.cur
	if before > st.Next && !isHandedOver(st) {
		return fmt.Errorf("%w: shard %v: can't trim below LSN %d, the tail is %d", metalog.ErrInvalid, sh.id, before, st.Next)
	}
	before = min(before, st.Next)
	if before <= st.Moved.Trimmed {
		return nil
	}
	m := *st.Moved
	m.Trimmed, m.Earlier = before, nil
	for _, s := range st.Moved.Earlier {
		if s.Next > before {
			s.First = max(s.First, min(before, s.Next))
			m.Earlier = append(m.Earlier, s)
		}
	}
	c.trims = append(c.trims, trimmedRange{sh: sh, from: 0, before: before})
	sh.cur.First, sh.cur.Moved = max(st.First, before), &m
	c.markDirty(sh)
	return nil
}

// Stays implements metalog.Log.
func (e *Engine) Stays(ctx context.Context, shard record.ShardID) ([]metalog.Stay, error) {
	if err := e.enterCall(); err != nil {
		return nil, err
	}
	defer e.leaveCall()
	if err := e.awaitBarrier(ctx); err != nil {
		return nil, err
	}
	st, err := e.table.stateOf(shard)
	if err != nil || st.Epoch == 0 {
		return nil, err
	}
	return stays(st), nil
}

// ForwardCategory implements metalog.Log.
func (e *Engine) ForwardCategory(ctx context.Context, category uint32, f metalog.Forward) (metalog.Forward, error) {
	o := &forwardOp{category: category, f: f}
	if err := e.runOp(ctx, metalog.ValidateForward(f), o); err != nil {
		return metalog.Forward{}, err
	}
	if f.Version != 0 {
		e.opts.Logger.InfoContext(ctx, "category marked", "category", category, "created_in", o.out.To, "version", o.out.Version)
	}
	return o.out, nil
}

type forwardOp struct {
	category uint32
	f, out   metalog.Forward
}

func (o *forwardOp) stage(c *logCommitter) error {
	known := c.forwardOf(o.category)
	if o.f.Version < known.Version && o.f.Version != 0 || o.f.Version == known.Version && o.f.To != known.To && o.f.Version != 0 {
		return fmt.Errorf("%w: category %d is marked for engine %q with version %d, so it can't be for %q with version %d",
			metalog.ErrConflict, o.category, known.To, known.Version, o.f.To, o.f.Version)
	}
	if err := c.raiseClock(o.f.Time); err != nil {
		return err
	}
	if o.f.Version > known.Version {
		known = schema.Forward{Version: o.f.Version, Time: c.now, To: o.f.To}
		key := schema.ForwardKey(o.category)
		_ = c.batch.Set(key, schema.AppendForward(nil, key, known), nil) // a batch without an index fails only when it is closed
		c.forwards[o.category] = known
	}
	o.out = metalog.Forward{To: known.To, Version: known.Version, Time: known.Time}
	return nil
}

// forwardOf returns a category's mark for the committer, which includes the batch being built. Its Version is 0 if there is none.
func (c *logCommitter) forwardOf(category uint32) schema.Forward {
	if f, ok := c.forwards[category]; ok {
		return f
	}
	c.e.table.mu.RLock()
	defer c.e.table.mu.RUnlock()
	return c.e.table.mu.forwards[category]
}

// absentState returns the state of a shard that does not exist, for the committer.
func (c *logCommitter) absentState(id record.ShardID) schema.State {
	st := c.e.table.absentState(id)
	if f := c.forwardOf(id.Category()); f.To != "" {
		st.Moved = &schema.Moved{Stay: schema.Stay{To: f.To, Left: f.Time}}
	}
	return st
}

// raiseVersion has the batch raise the folder's version with the first shard that moved, or the first mark of a category: older builds do not
// know these, and must not open the folder from then on.
func (c *logCommitter) raiseVersion() {
	e := c.e
	moved := len(c.forwards) > 0 || slices.ContainsFunc(c.dirty, func(sh *shardEntry) bool { return sh.cur.Moved != nil })
	if moved && !schema.HasMoved(e.version) {
		e.version = schema.VersionOf(e.replica != nil, true)
		setNumber(c.batch, schema.MetaFormat, e.version)
	}
}

// forgetForward removes the mark of a category that is erased.
func (c *logCommitter) forgetForward(category uint32) {
	if c.forwardOf(category).Version != 0 {
		_ = c.batch.Delete(schema.ForwardKey(category), nil) // a batch without an index fails only when it is closed
		c.forwards[category] = schema.Forward{}
	}
}

// stageForward makes what is in memory ready for a change of a category's mark.
func (c *logCommitter) stageForward(ch schema.Change) error {
	var f schema.Forward
	category, err := schema.ForwardKeyCategory(ch.Key)
	if err == nil && ch.Kind == schema.ChangeSet {
		category, f, err = schema.DecodeForward(ch.Key, ch.Value)
	}
	if err == nil && ch.Kind == schema.ChangeDeleteRange {
		err = fmt.Errorf("%w: a range of marks of categories is deleted", schema.ErrCorrupt)
	}
	if err != nil {
		return err
	}
	c.forwards[category] = f
	return nil
}

// addForwards makes marks of categories visible. It requires table.mu.
func (t *shardTable) addForwards(forwards map[uint32]schema.Forward) {
	for category, f := range forwards {
		switch {
		case f.Version == 0:
			delete(t.mu.forwards, category)
		case t.mu.forwards == nil:
			t.mu.forwards = map[uint32]schema.Forward{category: f}
		default:
			t.mu.forwards[category] = f
		}
	}
}

// loadForwards reads the marks of categories of a folder.
func loadForwards(db *pebble.DB) (map[uint32]schema.Forward, error) {
	out := make(map[uint32]schema.Forward)
	low, high := schema.ForwardBounds()
	for it, err := range keysBetween(db, low, high, (*pebble.Iterator).Next) {
		var value []byte
		if err == nil {
			value, err = it.ValueAndErr()
		}
		if err != nil {
			return nil, err
		}
		category, f, err := schema.DecodeForward(it.Key(), value)
		if err != nil {
			return nil, fmt.Errorf("%w: marks of categories: %w", metalog.ErrCorrupt, err)
		}
		out[category] = f
	}
	return out, nil
}

// movedBytes returns how many bytes an append writes of other engines: the states of its shards hold that.
func (t *shardTable) movedBytes(a *metalog.Append) (n int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.mu.moved {
		return 0
	}
	for i := range a.Shards {
		if sh := t.mu.shards[a.Shards[i].Shard]; sh != nil && sh.pub.Moved != nil {
			n += sh.pub.Moved.Len()
		}
	}
	return n
}
