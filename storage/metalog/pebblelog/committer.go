package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

const (
	// maxGroup bounds the queued requests, and the requests that share a commit. When the queue is full, callers wait.
	maxGroup = 1024
	// maxGroupBytes is the size at which a batch is committed; its last request may exceed it.
	maxGroupBytes = 8 << 20
)

// commitRequest is a call that the committer decides. The queue holds requests only; their data stays in the callers' memory.
type commitRequest struct {
	op   stagedOp
	err  error
	done chan struct{} // closed when the outcome is durable
	// claim says who may read the op's memory.
	claim atomic.Int32
}

// Values of request.claim.
const (
	claimQueued    = 0
	claimStaged    = 1 // the committer reads it, while it holds Engine.staging
	claimWithdrawn = 2 // the caller withdrew it before the committer claimed it: it has no effect
)

func newRequest(o stagedOp) *commitRequest { return &commitRequest{op: o, done: make(chan struct{})} }

// stagedOp is one kind of change. stage decides it against the current state, and either adds it to the batch or returns an error
// without changing anything. The caller gets its result once the batch is durable.
type stagedOp interface {
	stage(c *logCommitter) error
}

// submit has the committer execute o and waits for the outcome.
func (e *Engine) submit(ctx context.Context, o stagedOp) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.replica != nil && !e.replica.leads() {
		return e.replica.notLeader()
	}
	r := newRequest(o)
	select {
	case e.queue <- r:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.failed:
		return e.failedError()
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		if e.withdraw(r) {
			return ctx.Err()
		}
		return fmt.Errorf("metalog: outcome unknown, the call may still be carried out: %w", ctx.Err())
	case <-e.failed:
		e.withdraw(r)
		return e.failedError()
	}
}

// withdraw takes back a request whose caller stops waiting: after it returns, the committer does not use the caller's memory. It
// reports whether the request has no effect.
func (e *Engine) withdraw(r *commitRequest) bool {
	if r.claim.CompareAndSwap(claimQueued, claimWithdrawn) {
		return true
	}
	// A request is claimed and staged under this lock.
	e.staging.Lock()
	defer e.staging.Unlock()
	return false
}

// logCommitter is the goroutine that owns the tails of all logs. Only this goroutine uses its fields.
type logCommitter struct {
	e *Engine

	// The batch being built, and its state.
	batch *pebble.Batch
	now   int64 // time of its records
	group []*commitRequest
	dirty []*shardEntry
	// producers are the states of producers that the batch changes.
	producers map[producerKey]schema.Producer
	// overlay are the states of producers that the append being decided changes.
	overlay map[producerKey]schema.Producer
	tails   []*tailChunk
	trims   []trimmedRange
	// notes are annotations to be written after the batch, of noteBytes in all.
	notes     []pendingNote
	noteBytes int
	// boundary is the boundary after the batch.
	boundary int64
	// retired are the retired categories, including those that the batch retires.
	retired categorySet

	// known caches the states of producers on disk.
	known *simplelru.LRU[producerKey, schema.Producer]

	// leading is what the committer of a leading replica has; nil otherwise.
	leading *journal.Leader
	// patient says until when a replica that has handed over lets the others go first.
	patient time.Time
	// held is a request that did not fit into the entry before.
	held *commitRequest
	// retiredChanged says that the entry being applied changes retired categories.
	retiredChanged bool
	// fresh are records of the entry being applied that will become a chunk of tails.
	fresh freshRecords

	key, value, payload []byte // scratch
}

func newCommitter(e *Engine) *logCommitter {
	known, err := simplelru.NewLRU[producerKey, schema.Producer](knownProducers, nil)
	if err != nil {
		panic(err) // the size is a positive constant
	}
	return &logCommitter{
		e:         e,
		producers: make(map[producerKey]schema.Producer),
		overlay:   make(map[producerKey]schema.Producer),
		boundary:  e.boundary.Load(),
		retired:   e.retired,
		known:     known,
	}
}

// serveQueue serves the queue until the engine stops or fails. When the engine stops, no callers are left.
func (c *logCommitter) serveQueue() {
	defer close(c.e.stopped)
	for {
		select {
		case r := <-c.e.queue:
			if err := c.commitGroup(r); err != nil {
				c.e.setFailed(err)
				return
			}
		case <-c.e.stop:
			return
		}
	}
}

// commitGroup executes first and the other queued requests. After an error the content of the disk is unknown.
func (c *logCommitter) commitGroup(first *commitRequest) error {
	c.batch = c.e.db.NewBatch()
	bound, err := c.buildBatch(first)
	if err != nil {
		return err
	}
	if !c.batch.Empty() {
		start, size := time.Now(), c.batch.Len()
		if err := c.e.commitSynced(c.batch); err != nil {
			return err
		}
		c.e.metrics.commit(time.Since(start), len(c.group), size)
	}
	if err := c.writeNotes(); err != nil {
		return err
	}
	c.publishBatch(bound)
	if err := c.removeTrimmed(); err != nil {
		return err
	}
	return c.batch.Close()
}

// buildBatch stages requests until the queue is empty or the batch full. It returns the clock's bound that the batch writes.
func (c *logCommitter) buildBatch(first *commitRequest) (bound int64, err error) {
	e := c.e
	e.staging.Lock()
	defer e.staging.Unlock()
	c.now, bound = e.clock.beginBatch()
	for r := first; r != nil; r = c.nextRequest() {
		if r.claim.CompareAndSwap(claimQueued, claimStaged) {
			r.err = r.op.stage(c)
			c.group = append(c.group, r)
		}
	}
	for _, sh := range c.dirty {
		err = errors.Join(err, c.writeState(sh))
	}
	if e.replica == nil {
		c.raiseVersion(false)
	}
	for k, p := range c.producers {
		c.key = k.append(c.key[:0])
		c.value = schema.AppendProducer(c.value[:0], c.key, p)
		err = errors.Join(err, c.batch.Set(c.key, c.value, nil))
	}
	if bound != 0 && e.replica == nil {
		setNumber(c.batch, schema.MetaClock, bound)
	}
	return bound, err
}

// raiseVersion lets the batch that has the folder's first stub say that the folder may have some: older builds do not open it from then on. It
// is the folder's own, so no list of changes has it. After a failed batch nobody uses the folder as it is in memory.
func (c *logCommitter) raiseVersion(replica bool) {
	if c.e.hasStubs || !slices.ContainsFunc(c.dirty, func(sh *shardEntry) bool { return sh.cur.Removed }) {
		return
	}
	c.e.hasStubs = true
	setNumber(c.batch, schema.MetaFormat, schema.VersionOf(replica, true))
}

// writeState adds a changed state to the batch: as the shard's state, or, of a removed shard, as its stub.
func (c *logCommitter) writeState(sh *shardEntry) (err error) {
	if sh.cur.Epoch == 0 {
		return nil // erased, see eraseOp
	}
	if sh.cur.Removed {
		if err := c.batch.Delete(schema.AppendStateKey(c.key[:0], sh.id), nil); err != nil {
			return err
		}
		c.key = schema.AppendStubKey(c.key[:0], sh.id)
		c.value = schema.AppendStub(c.value[:0], c.key, sh.cur)
		return c.batch.Set(c.key, c.value, nil)
	}
	if sh.pub.Removed {
		err = c.batch.Delete(schema.AppendStubKey(c.key[:0], sh.id), nil)
	}
	c.key = schema.AppendStateKey(c.key[:0], sh.id)
	c.value = schema.AppendState(c.value[:0], c.key, sh.cur)
	return errors.Join(err, c.batch.Set(c.key, c.value, nil))
}

// nextRequest returns a queued request, or nil if there is none or the batch is full.
func (c *logCommitter) nextRequest() *commitRequest {
	if len(c.group) >= maxGroup || c.batch.Len()+c.noteBytes >= maxGroupBytes {
		return nil
	}
	select {
	case r := <-c.e.queue:
		if !c.fitsEntry(r) {
			c.held = r
			return nil
		}
		return r
	default:
		return nil
	}
}

// publishBatch makes a durable batch visible. The order matters: it publishes the states before the clock advances (see
// watermarkClock), and both before the callers are answered, because they may read at once.
func (c *logCommitter) publishBatch(bound int64) {
	e := c.e
	e.tails.addChunks(c.tails)
	e.table.publishStates(c.dirty, c.retired)
	e.boundary.Store(c.boundary)
	e.clock.endBatch(bound)
	for _, r := range c.group {
		close(r.done)
	}
	e.watchers.wakeAll(c.dirty)
	for k, p := range c.producers {
		c.known.Add(k, p)
	}
	for _, sh := range c.dirty {
		sh.dirty = false
	}
	clear(c.group)
	clear(c.dirty)
	clear(c.tails)
	clear(c.producers)
	c.group, c.dirty, c.tails = c.group[:0], c.dirty[:0], c.tails[:0]
}

// markDirty marks a shard's state as changed by the batch.
func (c *logCommitter) markDirty(sh *shardEntry) {
	if !sh.dirty {
		sh.dirty = true
		c.dirty = append(c.dirty, sh)
	}
}

// zones is the only kind of annotations.
const zones = uint8(metalog.AnnotationZones)

// removeTrimmed removes the records and the annotations below durable trims. It is not synced: records that survive a crash are
// below the shard's first LSN, where nobody reads, and the shard's next trim removes them.
//
// It runs after the trims were published, so a reader that misses a record finds the shard's new first LSN.
func (c *logCommitter) removeTrimmed() error {
	if len(c.trims) == 0 {
		return nil
	}
	b := c.e.db.NewBatch()
	err := c.deleteTrimmed(b)
	c.endTrims()
	return errors.Join(err, b.Commit(pebble.NoSync), b.Close())
}

// deleteTrimmed adds the removals of the group's trims to a batch.
func (c *logCommitter) deleteTrimmed(b *pebble.Batch) (err error) {
	for _, t := range c.trims {
		from := t.from
		if !t.sh.swept {
			from = 0
		}
		err = errors.Join(err, b.DeleteRange(schema.AppendRecordKey(nil, t.sh.id, from), schema.AppendRecordKey(nil, t.sh.id, t.before), nil),
			b.DeleteRange(schema.AppendAnnotationKey(nil, t.sh.id, zones, from), schema.AppendAnnotationKey(nil, t.sh.id, zones, t.before), nil))
	}
	return err
}

// endTrims forgets the group's trims once they are carried out.
func (c *logCommitter) endTrims() {
	for _, t := range c.trims {
		t.sh.swept = true
	}
	clear(c.trims)
	c.trims = c.trims[:0]
}
