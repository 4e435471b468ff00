package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// maxEntryBytes bounds the changes of a group, so that they fit into an entry with what building the batch adds to them.
const maxEntryBytes = journal.MaxPayload - 1<<20

// takeOver tries to lead from a head up to which everything is applied.
func (c *logCommitter) takeOver(head journal.Head) (leads bool) {
	r, log := c.e.replica, c.e.opts.Logger
	l, err := journal.Lead(context.WithoutCancel(r.life), r.journal, head, r.position(), journal.Options{
		URL: c.e.opts.URL, Random: c.e.opts.Random, Metrics: r.counts,
	})
	if lost := new(journal.LostError); errors.As(err, &lost) {
		r.offerHead(lost.Head)
		return false
	}
	if err != nil {
		log.Warn("takeover failed: trying again", "term", head.Term+1, "error", err)
		return false
	}
	c.leading = l
	c.known.Purge()
	now := l.Head()
	r.setOwner(now.Owner) // before the first beat: if that is not answered, this replica goes on from its own head at once
	c.e.clock.lead(now.Bound)
	if ahead := c.e.clock.microsAhead(); ahead > 2*c.e.clock.lease {
		log.Warn("wall clock is behind the last persisted times: the engine's clock stands still until it catches up", "behind_us", ahead)
	}
	if c.sendBeat() != nil { // begins the clock's bound, and tells the others
		c.stepDown()
		return false
	}
	r.beginLeading(l)
	log.Info("replica leads", "term", now.Term, "entry", now.Seq, "from", head.Leader)
	return true
}

// errDeposed ends a leadership, not the replica.
var errDeposed = errors.New("deposed")

// leadJournal decides calls until this replica does not lead any more: then it returns nil.
func (c *logCommitter) leadJournal() error {
	r := c.e.replica
	beats := time.NewTicker(c.e.opts.BeatEvery)
	defer beats.Stop()
	defer c.startBusyBeats()()
	defer r.busy.end()
	for {
		var err error
		r.busy.end()
		select {
		case q := <-c.e.queue:
			r.busy.begin()
			err = c.journalGroup(q)
		case <-beats.C:
			r.busy.begin()
			err = c.sendBeat()
		case <-r.news:
			err = c.checkSeen()
		case h := <-r.handOvers:
			h.done <- c.handOver(h.ctx, h.detach)
			err = errDeposed
		case <-c.e.stop:
			if err := c.handOver(context.Background(), ""); err != nil {
				c.e.opts.Logger.Warn("hand-over failed: another replica takes over after a while", "error", err)
			}
			return errStopped
		}
		for err == nil && c.held != nil {
			first := c.held
			c.held = nil
			r.busy.begin()
			err = c.journalGroup(first)
		}
		if err == nil && (r.room.failing.Load() || r.checkDamage() != nil) {
			_ = c.handOver(context.Background(), "") // logged; if it fails, another replica takes over after a while
			err = errDeposed
		}
		if errors.Is(err, errDeposed) {
			c.stepDown()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// stepDown ends the leadership. What was decided and is not durable was dropped before.
func (c *logCommitter) stepDown() {
	c.e.clock.follow(0)
	c.e.replica.endLeading()
	c.leading = nil
	c.known.Purge()
	c.e.ticking.Store(false)
	c.refuseQueued()
	c.e.opts.Logger.Info("replica follows")
}

// checkSeen looks whether the newest head is that of another leader.
func (c *logCommitter) checkSeen() error {
	head, _ := c.e.replica.newestHead()
	if own := c.leading.Head(); head.Revision > own.Revision && head.Owner != own.Owner {
		c.e.opts.Logger.Warn("another replica has taken over", "term", head.Term, "leader", head.Leader)
		return errDeposed
	}
	return nil
}

// sendBeat shows that this replica leads, and moves the clock's bound.
func (c *logCommitter) sendBeat() error {
	now, bound := c.e.clock.beginBatch()
	err := c.leading.Beat(c.leadContext(), journal.Times{Time: now, Bound: bound})
	if err != nil {
		c.e.clock.endBatch(0)
		c.e.opts.Logger.Warn("the journal does not take beats", "error", err)
		return errDeposed
	}
	c.e.clock.endBatch(bound)
	c.e.replica.offerHead(c.leading.Head())
	return nil
}

// leadContext is the context of changes. They have time limits of their own, and the last one is made when the engine stops.
func (c *logCommitter) leadContext() context.Context { return context.WithoutCancel(c.e.replica.life) }

// journalGroup executes first and other queued requests, as commitGroup does. It returns errDeposed when this replica must not
// decide anything else, because it does not lead or does not know whether its changes are durable.
func (c *logCommitter) journalGroup(first *commitRequest) error {
	c.batch = c.e.db.NewBatch()
	defer func() { _ = c.batch.Close() }() // fails only if it was not committed
	bound, err := c.buildBatch(first)
	if err == nil {
		err = c.deleteTrimmed(c.batch)
	}
	if err != nil {
		c.abandonGroup(err)
		return err
	}
	start, size := time.Now(), c.batch.Len()
	changed := !c.batch.Empty()
	if err := c.journalBatch(bound); err != nil {
		return c.failGroup(err)
	}
	head := c.leading.Head()
	if !changed {
		return c.publishUnchanged(bound)
	}
	c.e.metrics.commit(time.Since(start), len(c.group), size)
	c.e.replica.offerHead(head)
	return c.applyStaged(head.Position(), head.Time, bound)
}

// publishUnchanged answers a group that changes nothing but annotations and the clock's bound.
func (c *logCommitter) publishUnchanged(bound int64) error {
	if err := c.writeNotes(); err != nil {
		return fmt.Errorf("%w: %w", errFolder, err)
	}
	c.publishBatch(bound)
	return nil
}

// journalBatch makes the group's batch durable. A group without changes moves the clock's bound if that is due. Otherwise it makes
// sure that this replica led when it decided the group: its answers, also refusals, depend on states that only the leader knows.
func (c *logCommitter) journalBatch(bound int64) error {
	times := journal.Times{Time: c.now, Bound: bound}
	switch {
	case !c.batch.Empty():
		if err := c.awaitFlush(); err != nil {
			return err
		}
		payload, err := c.encodeBatch()
		if err != nil {
			return err
		}
		return c.leading.Append(c.leadContext(), payload, times)
	case bound != 0:
		return c.leading.Beat(c.leadContext(), times)
	case c.needsLead():
		return c.confirmLead()
	default:
		return nil
	}
}

// needsLead reports whether an answer of the group depends on states.
func (c *logCommitter) needsLead() bool {
	for _, q := range c.group {
		if _, tick := q.op.(tickOp); !tick {
			return true
		}
	}
	return false
}

// confirmLead makes sure that this replica leads.
func (c *logCommitter) confirmLead() error {
	head, err := c.e.replica.readHead(c.leadContext())
	switch {
	case errors.Is(err, journal.ErrWentBack):
		return fmt.Errorf("%w: %w", journal.ErrDeposed, err)
	case err != nil:
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	case head.Owner != c.leading.Head().Owner:
		c.e.replica.offerHead(head)
		return journal.ErrDeposed
	}
	return nil
}

// errUnconfirmed says that a group without changes could not be confirmed. Nothing is in doubt.
var errUnconfirmed = errors.New("metalog: the journal does not answer, so this replica can't tell whether it leads")

// encodeBatch returns the batch as a list of changes, which is valid until the next one.
func (c *logCommitter) encodeBatch() ([]byte, error) {
	c.payload = schema.BeginChanges(c.payload[:0])
	for reader := c.batch.Reader(); ; {
		kind, key, value, ok, err := reader.Next()
		if err != nil || !ok {
			return c.payload, err
		}
		ch := schema.Change{Kind: changeKinds[kind], Key: key, Value: value}
		c.payload = schema.AppendChange(c.payload, ch)
	}
}

// changeKinds maps the kinds of operations that the committer puts into batches.
var changeKinds = map[pebble.InternalKeyKind]schema.ChangeKind{
	pebble.InternalKeyKindSet: schema.ChangeSet, pebble.InternalKeyKindDelete: schema.ChangeDelete, pebble.InternalKeyKindRangeDelete: schema.ChangeDeleteRange,
}

// failGroup answers a group that is not durable. After a definite refusal the leader goes on.
func (c *logCommitter) failGroup(err error) error {
	if lost := new(journal.LostError); errors.As(err, &lost) {
		c.e.replica.offerHead(lost.Head)
	}
	switch {
	case errors.Is(err, journal.ErrUnknown):
		c.e.clock.follow(0) // before anything else: the entry may be stored, and no watermark above its time may be told
		c.abandonGroup(fmt.Errorf("metalog: outcome unknown, the call may still be carried out: %w", err))
		return errDeposed
	case errors.Is(err, journal.ErrDeposed):
		c.abandonGroup(c.e.replica.notLeader())
		return errDeposed
	case errors.Is(err, journal.ErrFull):
		c.e.metrics.journalFull.Inc()
		if s := c.e.replica.snapshots; s != nil {
			s.wake.WakeUp()
		}
		c.abandonGroup(fmt.Errorf("metalog: not carried out, the journal takes no changes: %w", err))
	case errors.Is(err, journal.ErrInvalid):
		c.abandonGroup(fmt.Errorf("%w: %w", metalog.ErrInvalid, err))
	default:
		c.abandonGroup(err)
	}
	return nil
}

// abandonGroup drops what the group has changed in memory, and answers its calls with an error: also those that were refused, since
// a refusal may depend on changes of the same group.
func (c *logCommitter) abandonGroup(err error) {
	c.dropStaged()
	c.e.clock.endBatch(0)
	for _, q := range c.group {
		q.err = err
		close(q.done)
	}
	clear(c.group)
	c.group = c.group[:0]
}

// dropStaged returns to the published states.
func (c *logCommitter) dropStaged() {
	c.e.table.resetStates(c.dirty)
	c.retired = c.e.table.copyRetired(c.retired)
	c.boundary = c.e.boundary.Load()
	clear(c.dirty)
	clear(c.tails)
	clear(c.trims)
	clear(c.notes)
	clear(c.producers)
	c.dirty, c.tails, c.trims, c.notes, c.noteBytes = c.dirty[:0], c.tails[:0], c.trims[:0], c.notes[:0], 0
}

// resetStates returns the committer's states of shards to the published ones.
func (t *shardTable) resetStates(shards []*shardEntry) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, sh := range shards {
		sh.cur, sh.dirty = sh.pub, false
	}
}

// copyRetired copies the published retired categories over dst.
func (t *shardTable) copyRetired(dst categorySet) categorySet {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return append(dst[:0], t.mu.retired...)
}

// fitsEntry reports whether a request fits into the entry being built.
func (c *logCommitter) fitsEntry(q *commitRequest) bool {
	if c.e.replica == nil {
		return true
	}
	o, ok := q.op.(*appendOp)
	return !ok || c.batch.Len()+o.size <= maxEntryBytes
}

// Upper bounds of what the parts of an append add to an entry, in bytes, beside the data of records.
const (
	recordChange   = 3 + 3 + schema.RecordKeyLen + schema.RecordOverhead
	stateChange    = 60
	producerChange = 60
)

// checkEntry refuses an append whose changes do not fit into an entry of the journal.
func (e *Engine) checkEntry(o *appendOp) error {
	if e.replica == nil {
		return nil
	}
	for i := range o.a.Shards {
		s := &o.a.Shards[i]
		o.size += stateChange + len(s.Records)*recordChange + len(s.Sequences)*producerChange
		for _, data := range s.Records {
			o.size += len(data)
		}
	}
	if o.size > maxEntryBytes {
		return fmt.Errorf("%w: the transaction takes %d bytes in the journal, the limit is %d: append less at once", metalog.ErrInvalid, o.size, maxEntryBytes)
	}
	return nil
}

// handOverRequest asks the committer to hand over.
type handOverRequest struct {
	ctx  context.Context //nolint:containedctx // of the call
	done chan error      // has room for the answer
	// detach is the node that goes on without the journal; empty if another replica goes on.
	detach string
}

// HandOver ends this replica's leadership in order: another replica takes over at once. It fails with ErrNotLeader at a replica that
// does not lead. After any other error this replica does not lead either, and another one takes over after a while.
func (e *Engine) HandOver(ctx context.Context) error { return e.askHandOver(ctx, "") }

// askHandOver has the committer hand over, or detach the journal.
func (e *Engine) askHandOver(ctx context.Context, detach string) error {
	if e.replica == nil {
		return fmt.Errorf("%w: the engine has no journal: nobody can take over", metalog.ErrInvalid)
	}
	if err := e.enterCall(); err != nil {
		return err
	}
	defer e.leaveCall()
	h := &handOverRequest{ctx: ctx, done: make(chan error, 1), detach: detach}
	select {
	case e.replica.handOvers <- h:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.failed:
		return e.failedError()
	}
	select {
	case err := <-h.done:
		return err
	case <-e.failed:
	}
	select {
	case err := <-h.done: // who has detached the journal halts
		return err
	default:
		return e.failedError()
	}
}

// handOver frees the head, for good if a node detaches the journal. The clock stands from before its exact bound is taken.
func (c *logCommitter) handOver(ctx context.Context, detach string) (err error) {
	c.e.clock.follow(0)
	c.e.replica.endLeading()
	c.patient = time.Now().Add(c.e.opts.TakeoverAfter)
	exact := journal.Times{Bound: c.e.clock.exactBound()}
	if detach == "" {
		err = c.leading.HandOver(ctx, exact)
	} else {
		err = c.leading.DetachTo(ctx, exact, detach)
	}
	head := c.leading.Head()
	c.e.replica.offerHead(head)
	c.e.opts.Logger.Log(ctx, levelOf(err), "replica hands over", "term", head.Term, "entry", head.Seq, "detached", head.Detached, "error", err)
	return err
}

func levelOf(err error) slog.Level {
	if err != nil {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}
