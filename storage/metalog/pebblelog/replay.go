package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// followJournal applies entries until this replica has taken over: then it returns nil.
func (c *logCommitter) followJournal() error {
	r := c.e.replica
	w := r.watchHead()
	defer w.stop()
	for {
		select {
		case q := <-c.e.queue:
			c.refuse(q)
		case h := <-r.handOvers:
			h.done <- r.notLeader()
		case err := <-w.fault:
			return err
		case <-c.e.stop:
			return errStopped
		case <-r.news:
		}
		if err := r.checkDamage(); err != nil {
			return err
		}
		leads, err := c.catchUp(w)
		if err != nil || leads {
			return err
		}
	}
}

// catchUp applies what is new, and takes over if nobody leads.
func (c *logCommitter) catchUp(w *headWatch) (leads bool, err error) {
	r := c.e.replica
	head, heard := r.newestHead()
	if !heard {
		return false, nil
	}
	if err := c.applyEntries(head); err != nil {
		if isJournalFault(err) || errors.Is(err, errStopped) || r.life.Err() != nil || errors.Is(err, errFolder) {
			return false, c.stopOr(err)
		}
		c.e.opts.Logger.Warn("entries of the journal can't be read: trying again", "error", err)
		return false, nil // the next look at the head tries again
	}
	if err := journal.CheckDetached(head); err != nil {
		return false, c.stopOr(err)
	}
	if !c.isLeaderless(w, head) {
		return false, nil
	}
	return c.takeOver(head), nil
}

// stopOr returns errStopped if the engine stops, since everything fails then, else err.
func (c *logCommitter) stopOr(err error) error {
	if c.e.replica.life.Err() != nil {
		return errStopped
	}
	return err
}

// refuse answers a write at a replica that does not lead.
func (c *logCommitter) refuse(q *commitRequest) {
	c.e.ticking.Store(false)
	if q.claim.CompareAndSwap(claimQueued, claimStaged) {
		q.err = c.e.replica.notLeader()
		close(q.done)
	}
}

// refuseQueued refuses what is queued.
func (c *logCommitter) refuseQueued() {
	if c.held != nil {
		c.refuse(c.held)
		c.held = nil
	}
	for {
		select {
		case q := <-c.e.queue:
			c.refuse(q)
		default:
			return
		}
	}
}

// errFolder marks an error of the folder, after which its content is unknown.
var errFolder = errors.New("metalog: the folder failed")

// readLimit is how long a read of the journal may take without an entry.
const readLimit = 10 * time.Second

// applyEntries applies the journal up to a head.
func (c *logCommitter) applyEntries(head journal.Head) error {
	r := c.e.replica
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	limit := time.AfterFunc(readLimit, cancel)
	defer limit.Stop()
	_, err := r.reader.ReadEntries(ctx, r.position(), head, func(en journal.Entry, at journal.Position) error {
		limit.Reset(readLimit)
		return c.applyEntry(en, at)
	})
	if err != nil {
		return err
	}
	c.e.clock.follow(head.Time)
	r.setCaught(head)
	return nil
}

// applyEntry applies one entry and shows it to readers.
func (c *logCommitter) applyEntry(en journal.Entry, at journal.Position) error {
	c.refuseQueued()
	if err := c.awaitRoom(); err != nil {
		return err
	}
	c.batch = c.e.db.NewBatch()
	defer func() { _ = c.batch.Close() }() // fails only if it was not committed
	c.retiredChanged = false
	err := schema.DecodeChanges(en.Payload, c.stageChange)
	c.endRun()
	if err != nil {
		c.dropStaged()
		return fmt.Errorf("entry %d: %w", en.Seq, markFault(err))
	}
	return c.applyStaged(at, en.Time, 0)
}

// markFault says whose fault it is that an entry can't be applied: an entry that passed its checksum and can't be understood is
// damaged, everything else comes from the folder.
func markFault(err error) error {
	switch {
	case errors.Is(err, schema.ErrCorrupt):
		return fmt.Errorf("%w: %w", journal.ErrCorrupt, err)
	case errors.Is(err, schema.ErrNewer):
		return err
	default:
		return fmt.Errorf("%w: %w", errFolder, err)
	}
}

// applyStaged writes the batch to Pebble, together with the position of its entry, and publishes it.
func (c *logCommitter) applyStaged(at journal.Position, time, bound int64) error {
	r := c.e.replica
	key := schema.MetaKey(schema.MetaApplied)
	_ = c.batch.Set(key, schema.AppendApplied(nil, key, schema.Applied{Seq: at.Seq, Time: time, Chain: at.Chain}), nil)
	c.raiseVersion(true)
	r.publishing.Lock()
	defer r.publishing.Unlock()
	err := c.e.db.Apply(c.batch, pebble.NoSync)
	if err == nil && c.retiredChanged {
		c.retired, err = loadRetired(c.e.db)
	}
	if err == nil {
		err = c.writeNotes()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errFolder, err)
	}
	r.journaled.Add(int64(c.batch.Len()))
	r.room.unflushed.Add(int64(c.batch.Len()))
	c.endTrims()
	c.publishBatch(bound)
	if c.leading == nil {
		c.e.clock.follow(time)
	}
	r.setApplied(at, time)
	return nil
}

// stageChange adds a change of an entry to the batch, and makes what is in memory ready for it.
func (c *logCommitter) stageChange(ch schema.Change) error {
	var err error
	switch kind := schema.Kind(ch.Key[0]); {
	case kind == schema.KindState && ch.Kind == schema.ChangeSet:
		err = c.stageState(ch, schema.StateKeyShard, schema.DecodeState)
	case kind == schema.KindStub && ch.Kind == schema.ChangeSet:
		err = c.stageState(ch, schema.StubKeyShard, schema.DecodeStub)
	case kind == schema.KindState && ch.Kind == schema.ChangeDeleteRange:
		err = c.stageErasure(ch)
	case kind == schema.KindRecord && ch.Kind == schema.ChangeSet:
		err = c.gatherRecord(ch)
	case kind == schema.KindRetired:
		c.retiredChanged = true
	case kind == schema.KindMeta:
		c.boundary, err = schema.DecodeNumber(ch.Key, ch.Value)
	}
	if err != nil {
		return err
	}
	switch ch.Kind {
	case schema.ChangeSet:
		return c.batch.Set(ch.Key, ch.Value, nil)
	case schema.ChangeDelete:
		return c.batch.Delete(ch.Key, nil)
	default:
		return c.batch.DeleteRange(ch.Key, ch.Value, nil)
	}
}

// stageState takes a state of an entry: a shard's state, or its stub.
func (c *logCommitter) stageState(ch schema.Change, shardOf func([]byte) (record.ShardID, error), decode func(key, value []byte) (schema.State, error)) error {
	id, err := shardOf(ch.Key)
	if err != nil {
		return err
	}
	st, err := decode(ch.Key, ch.Value)
	if err != nil {
		return err
	}
	sh, err := c.e.table.getShard(id)
	if err != nil {
		return err
	}
	if sh == nil {
		sh = c.e.table.createShard(id)
	}
	sh.cur = st
	c.markDirty(sh)
	return nil
}

// stageErasure makes the shards of an erased category such that never will be; see eraseOp.
func (c *logCommitter) stageErasure(ch schema.Change) error {
	category, err := schema.CategoryOf(ch.Key)
	if err != nil {
		return err
	}
	_, _, err = c.eraseShards(category)
	return err
}

// freshRecords are records of a shard one after another, of one time.
type freshRecords struct {
	shard   record.ShardID
	first   record.LSN
	time    int64
	records [][]byte
}

// gatherRecord keeps a record of a followed shard for its subscribers.
func (c *logCommitter) gatherRecord(ch schema.Change) error {
	shard, lsn, err := schema.RecordKeyPlace(ch.Key)
	if err != nil || !c.e.watchers.follows(shard) {
		return err
	}
	at, data, err := schema.Record(ch.Key, ch.Value)
	if err != nil {
		return err
	}
	f := &c.fresh
	if len(f.records) == 0 || shard != f.shard || at != f.time || lsn != f.first+record.LSN(len(f.records)) {
		c.endRun()
		f.shard, f.first, f.time = shard, lsn, at
	}
	f.records = append(f.records, data)
	return nil
}

// endRun makes a chunk of the records gathered last.
func (c *logCommitter) endRun() {
	f := &c.fresh
	if len(f.records) > 0 {
		c.tails = append(c.tails, newTailChunk(f.shard, f.first, f.time, f.records))
	}
	clear(f.records)
	f.records = f.records[:0]
}

// headWatch looks at the journal's head while the replica follows.
type headWatch struct {
	r      *replica
	cancel context.CancelFunc
	done   chan struct{}
	// fault gets the error that no repetition cures.
	fault chan error
	// silent is the head under which nobody has shown that it leads for TakeoverAfter; nil if there is none.
	silent atomic.Pointer[journal.Head]
}

func (w *headWatch) isSilent(head journal.Head) bool {
	silent := w.silent.Load()
	return silent != nil && *silent == head
}

// watchHead starts to look at the head.
func (r *replica) watchHead() *headWatch {
	ctx, cancel := context.WithCancel(r.life)
	w := &headWatch{r: r, cancel: cancel, done: make(chan struct{}), fault: make(chan error, 1)}
	r.work.Go(func() {
		defer close(w.done)
		w.watch(ctx)
	})
	r.news.WakeUp()
	return w
}

func (w *headWatch) stop() {
	w.cancel()
	<-w.done
}

// watch offers each head to the committer, until ctx ends.
func (w *headWatch) watch(ctx context.Context) {
	s := &w.r.silence
	s.lose()
	pause := w.r.e.opts.TakeoverAfter / 8
	var known journal.Head
	for ctx.Err() == nil {
		head, err := w.look(ctx, known, s.looks == 0, 2*pause)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && isJournalFault(err):
			w.fault <- err
			return
		case err != nil:
			s.lose()
			w.r.e.metrics.journalErrors.Inc()
			waitFor(ctx, pause)
			continue
		}
		known = head
		if s.observe(head, time.Now()) {
			w.silent.Store(&head)
		}
		w.r.offerHead(head)
	}
}

// look returns the head as soon as it changes, or after a while. A journal that only waits has not answered: the head is read then.
func (w *headWatch) look(ctx context.Context, known journal.Head, first bool, within time.Duration) (journal.Head, error) {
	if !first {
		waiting, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		head, err := w.r.journal.Wait(waiting, known)
		if err == nil && head.Revision != known.Revision {
			return head, nil
		}
		if err != nil && waiting.Err() == nil {
			return journal.Head{}, err
		}
		if err == nil && waiting.Err() == nil { // a spurious answer must not spin
			waitFor(waiting, within/4)
		}
	}
	return w.r.readHead(ctx)
}

// waitFor waits, at most until ctx ends.
func waitFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// isLeaderless reports whether this replica may take over from a head: nobody leads, or who leads is silent, or it is this replica,
// which did not know the outcome of what it changed last.
func (c *logCommitter) isLeaderless(w *headWatch, head journal.Head) bool {
	if time.Now().Before(c.patient) || c.e.replica.room.failing.Load() {
		return false
	}
	return head.Free() || head.Owner == c.e.replica.formerOwner() || w.isSilent(head)
}

// silence tells from looks at the head whether the leader is silent. A look that fails tells nothing: the leader may be well.
type silence struct {
	after time.Duration
	head  journal.Head
	since time.Time
	looks int
	// strikes counts leaders that were deposed, until none was for strikeMemory. Each doubles the patience: a leader that only took
	// long for a large entry would be deposed again and again otherwise, and so would whoever is asked for that entry next.
	strikes int
	struck  time.Time
}

// strikeMemory is how long a deposed leader is remembered, maxStrikes how many of them count.
const (
	strikeMemory = time.Minute
	maxStrikes   = 5
)

// minSilentLooks is how often the same head must have been seen before its leader counts as silent.
const minSilentLooks = 4

// observe takes note of a look that returned head, and reports whether its leader is silent.
func (s *silence) observe(head journal.Head, now time.Time) bool {
	if head.Term > s.head.Term && s.head.Term > 0 && !s.head.Free() {
		s.strikes, s.struck = min(s.strikes+1, maxStrikes), now
	}
	if now.Sub(s.struck) > strikeMemory {
		s.strikes = 0
	}
	if s.looks == 0 || head != s.head {
		s.head, s.since, s.looks = head, now, 0
	}
	s.looks++
	return s.looks >= minSilentLooks && now.Sub(s.since) >= s.after<<s.strikes
}

// lose takes note of a look that failed.
func (s *silence) lose() { s.looks = 0 }
