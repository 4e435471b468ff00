package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/base/lifecycle"
	"scribe/storage/blob"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// replica is what an engine has beyond its folder when it replicates a journal.
//
// The committer either follows, which means that it applies the entries of the journal, or leads: then it decides calls as it does
// without a journal, appends each group's changes to the journal, and applies them when they are durable there. The folder has no
// write-ahead log. A crash leaves the folder as it was after some entry, whose number is in it, and the rest is read again.
type replica struct {
	e       *Engine
	journal journal.Journal
	reader  *journal.Reader // the committer's
	counts  *journal.Metrics
	barrier headBarrier

	// life ends when the engine stops.
	life context.Context //nolint:containedctx // of the goroutines
	end  context.CancelFunc
	// work are the goroutines beside the committer.
	work sync.WaitGroup
	// news tells the committer that seen has changed.
	news lifecycle.WakeChannel
	// handOvers are asked of the committer. Nobody waits in it once the engine has failed or drains.
	handOvers chan *handOverRequest
	// folder counts the calls that use the folder as it is, once that is known to continue in the journal: calls are refused before. It drains,
	// and another takes its place, when the folder is replaced. So it does not change while a call runs.
	folder atomic.Pointer[lifecycle.Calls]
	// damage is what the folder's files were found to be damaged by; nil while they are not.
	damage atomic.Pointer[error]
	// snapshots makes snapshots; nil without a store.
	snapshots *snapshotter
	// journaled is how many bytes of changes were applied since the last snapshot of this process.
	journaled atomic.Int64
	room      folderRoom
	silence   silence // of the goroutine that watches the head
	busy      busySince
	// publishing is held for writing from before an entry's changes are in Pebble until they are published.
	publishing sync.RWMutex

	mu struct {
		sync.Mutex
		// seen is the newest head that was read; heard says that there is one.
		seen  journal.Head
		heard bool
		// caught is the newest head that everything is applied of, also its times.
		caught journal.Head
		// applied is the newest entry whose changes readers see, and time its time.
		applied journal.Position
		time    int64
		// leading says that the committer leads, owner is the id with which it did so last, or tried to.
		leading bool
		owner   journal.ID
		leader  *journal.Leader
		// changed is closed when applied, leading or seen change; nil if nobody waits for it.
		changed chan struct{}
	}
}

func newReplica(e *Engine) (*replica, error) {
	reader, err := journal.NewReader(e.opts.Journal)
	if err != nil {
		return nil, err
	}
	r := &replica{e: e, journal: e.opts.Journal, reader: reader, news: lifecycle.NewWakeChannel(), handOvers: make(chan *handOverRequest)}
	r.silence.after = e.opts.TakeoverAfter
	r.room.changed = lifecycle.NewWakeChannel()
	r.life, r.end = context.WithCancel(context.Background())
	if e.opts.Snapshots == nil {
		return r, nil
	}
	if err := blob.CheckKey(snapshotKey(e.opts.Name, 0)); err != nil {
		return nil, fmt.Errorf("metalog: name %q of the engine: %w", e.opts.Name, err)
	}
	r.snapshots = newSnapshotter(e)
	return r, nil
}

// loadReplica checks the folder's format and reads how far the journal was applied.
func (e *Engine) loadReplica() error {
	version, found, err := e.readNumber(schema.MetaFormat)
	switch {
	case err != nil:
		return err
	case !found:
		if err := e.requireEmpty(); err != nil {
			return err
		}
		if err := e.db.Set(schema.MetaKey(schema.MetaFormat), schema.AppendNumber(nil, schema.MetaKey(schema.MetaFormat), schema.ReplicaVersion), pebble.NoSync); err != nil {
			return err
		}
	case version > schema.StubReplicaVersion:
		return fmt.Errorf("%w: version %d, this build reads %d: use a newer build", ErrVersion, version, schema.StubReplicaVersion)
	case !schema.IsReplica(version):
		return fmt.Errorf("%w: it holds logs that are not in the journal: use another folder", ErrReplica)
	}
	e.hasStubs = schema.HasStubs(version)
	if err := e.loadMarks(); err != nil {
		return err
	}
	key := schema.MetaKey(schema.MetaApplied)
	applied, _, err := lookUp(e.db, key, schema.DecodeApplied)
	if err != nil {
		return fmt.Errorf("%w: applied position: %w", metalog.ErrCorrupt, err)
	}
	e.replica.setApplied(journal.Position{Seq: applied.Seq, Chain: applied.Chain}, applied.Time)
	e.clock.follow(applied.Time)
	return nil
}

// changeState changes the state under the lock, and wakes who waits for a change.
func (r *replica) changeState(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
}

// awaitState waits until the state satisfies done, which is called under the lock, or the caller must leave.
func (r *replica) awaitState(ctx context.Context, leaving <-chan struct{}, done func() bool) error {
	for {
		r.mu.Lock()
		ok := done()
		if r.mu.changed == nil {
			r.mu.changed = make(chan struct{})
		}
		changed := r.mu.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-leaving:
			return r.e.closingError()
		case <-r.e.calls.Draining():
			return r.e.closingError()
		case <-r.e.failed:
			return r.e.failedError()
		}
	}
}

func (r *replica) setApplied(p journal.Position, time int64) {
	r.changeState(func() { r.mu.applied, r.mu.time = p, time })
}

func (r *replica) position() journal.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.applied
}

// offerHead tells the committer of a head that was read.
func (r *replica) offerHead(h journal.Head) {
	r.changeState(func() {
		if h.Revision >= r.mu.seen.Revision {
			r.mu.seen, r.mu.heard = h, true
		}
	})
	r.news.WakeUp()
}

// newestHead returns the newest head that was read, if any was.
func (r *replica) newestHead() (head journal.Head, heard bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.seen, r.mu.heard
}

func (r *replica) leads() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.leading
}

// beginLeading says that the committer leads since head.
func (r *replica) beginLeading(l *journal.Leader) {
	head := l.Head()
	r.changeState(func() { r.mu.leading, r.mu.leader, r.mu.caught = true, l, head })
}

// setOwner says with which id this replica leads, or tries to.
func (r *replica) setOwner(id journal.ID) { r.changeState(func() { r.mu.owner = id }) }

func (r *replica) endLeading() { r.changeState(func() { r.mu.leading = false }) }

// setCaught says that a head is followed.
func (r *replica) setCaught(head journal.Head) { r.changeState(func() { r.mu.caught = head }) }

// formerOwner returns the id with which this replica led last.
func (r *replica) formerOwner() journal.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.owner
}

// notLeader returns the error of a write at a replica that does not lead.
func (r *replica) notLeader() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.seen.Owner == r.mu.owner { // it is this one that led
		return &metalog.NotLeaderError{}
	}
	return &metalog.NotLeaderError{Leader: r.mu.seen.Leader}
}

// enterFolder admits a call to the folder, unless the replica does not know whether that continues in the journal.
func (r *replica) enterFolder() error {
	if folder := r.folder.Load(); folder != nil && folder.Enter() {
		return nil
	}
	return r.notServing()
}

// servesFolder reports whether calls are admitted.
func (r *replica) servesFolder() bool {
	folder := r.folder.Load()
	return folder != nil && !folder.Closed()
}

// notServing returns the error of a call while the folder is not served: another replica takes it.
func (r *replica) notServing() error {
	return fmt.Errorf("the replica on %s is starting, or its folder is being replaced by a snapshot: %w", r.e.dir, &metalog.NotLeaderError{})
}

// awaitPublished waits until what is in Pebble now is published.
func (r *replica) awaitPublished() {
	r.publishing.RLock()
	defer r.publishing.RUnlock()
}

// Leading reports whether this replica takes writes, and in which term the newest known leader was elected. An engine without a journal
// always leads, in term 0.
func (e *Engine) Leading() (leads bool, term uint64) {
	if e.replica == nil {
		return true, 0
	}
	r := e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.leading, r.mu.caught.Term
}

// ReplicaPosition is how far a replica is.
type ReplicaPosition struct {
	// Applied is the newest entry of the journal that readers see, and Time its time in Unix µs.
	Applied uint64
	Time    int64
	// Head is the journal's last entry, Leader the URL of the leader, as far as this replica knows.
	Head   uint64
	Leader string
}

// Position returns how far the replica is; it is zero for an engine without a journal.
func (e *Engine) Position() ReplicaPosition {
	if e.replica == nil {
		return ReplicaPosition{}
	}
	r := e.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	return ReplicaPosition{Applied: r.mu.applied.Seq, Time: r.mu.time, Head: max(r.mu.seen.Seq, r.mu.applied.Seq), Leader: r.mu.seen.Leader}
}

// AwaitLeader waits until some replica leads, and this one has applied what was journaled until then. It reports whether this one leads.
// It returns at once for an engine without a journal.
func (e *Engine) AwaitLeader(ctx context.Context) (leads bool, err error) {
	if e.replica == nil {
		return true, nil
	}
	r := e.replica
	err = r.awaitState(ctx, nil, func() bool {
		leads = r.mu.leading
		return leads || r.servesFolder() && !r.mu.caught.Free() && r.mu.caught.Owner != r.mu.owner
	})
	return leads, err
}

// errStopped ends the committer of a replica.
var errStopped = errors.New("stopped")

// serveReplica follows and leads in turn until the engine stops or fails.
func (c *logCommitter) serveReplica() {
	defer close(c.e.stopped)
	err := c.prepareFolder(false)
	if err == nil && c.e.replica.snapshots != nil {
		c.e.replica.work.Go(c.e.replica.snapshots.makeSnapshots)
	}
	for err == nil {
		if err = c.followJournal(); err == nil {
			err = c.leadJournal()
		}
		if err != nil && c.mayReplace(err) {
			err = c.replaceFolder(err)
		}
	}
	if !errors.Is(err, errStopped) {
		c.e.fail(err)
	}
	if c.held != nil {
		c.refuse(c.held)
	}
}

// journalFaults are the errors that no repetition cures, and for which the folder is not at fault.
var journalFaults = []error{journal.ErrWentBack, journal.ErrCorrupt, journal.ErrTrimmed, journal.ErrVersion, journal.ErrDetached, schema.ErrNewer, errSeed}

// isJournalFault reports whether the journal, and not the folder, keeps the replica from going on.
func isJournalFault(err error) bool {
	for _, fault := range journalFaults {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// fail ends the replica: it halts, if only the journal is at fault.
func (e *Engine) fail(err error) {
	if !isJournalFault(err) {
		e.setFailed(err)
		return
	}
	e.fatal.once.Do(func() {
		e.fatal.err, e.fatal.halted = err, true
		close(e.failed)
		e.opts.Logger.Error("replica halted: it refuses all calls", "error", err)
	})
}

// flushLimit bounds how long a replica that closes waits for its folder to be written. What is not written is read from the journal
// again.
const flushLimit = 10 * time.Second

// closeFolder stops the committer, which hands over if it leads, and releases the folder.
func (r *replica) closeFolder() error {
	e := r.e
	r.end()
	select {
	case <-e.stopped:
	case <-e.failed:
		if !e.fatal.halted {
			return e.failedError()
		}
		<-e.stopped
	}
	r.work.Wait()
	if err := e.Err(); err != nil && !e.fatal.halted {
		return err
	}
	r.flushFolder()
	if err := e.Err(); err != nil {
		if !e.fatal.halted {
			return err
		}
		e.guard.armed.Store(false) // it has nothing to report any more
		return e.releaseFolder()
	}
	// A flush or a compaction may still be under way, and Pebble ends the process if it can't write the manifest then. So the guard stays,
	// and who closes does not wait for Pebble after that.
	released := make(chan error, 1)
	go func() { released <- e.releaseFolder() }()
	select {
	case err := <-released:
		return err
	case <-e.failed:
		return e.failedError()
	}
}

// flushFolder writes what the folder has in memory only. The replica need not read it from the journal again then.
func (r *replica) flushFolder() {
	if r.room.failing.Load() {
		r.e.opts.Logger.Warn("folder not written before closing: the journal has what is missing", "error", errNoRoom)
		return
	}
	flushed, err := r.e.db.AsyncFlush()
	if err != nil {
		r.e.opts.Logger.Warn("folder not written before closing: the journal has what is missing", "error", err)
		return
	}
	limit := time.NewTimer(flushLimit)
	defer limit.Stop()
	for {
		select {
		case <-flushed:
			return
		case <-r.e.failed:
			return
		case <-r.room.changed: // the committer does not wait for it any more
			if r.room.failing.Load() { // Pebble tries again at once, for as long as it is not closed
				r.e.opts.Logger.Warn("folder not written before closing: the journal has what is missing", "error", errNoRoom)
				return
			}
		case <-limit.C:
			r.e.opts.Logger.Warn("folder not written before closing: the journal has what is missing", "waited", flushLimit)
			return
		}
	}
}
