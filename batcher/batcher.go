package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/batcher/arena"
	"scribe/batcher/logqueue"
	"scribe/internal/base/buffers"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/internal/role/budget"
	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/metalog"
)

// Blobs is the batcher's view of the object store, a blob.Store.
type Blobs interface {
	Put(ctx context.Context, key string, parts ...[]byte) error
}

// Log is the batcher's view of the metadata engine, a metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error)
}

// Deps are the dependencies of a batcher. They outlive it.
type Deps struct {
	Blobs      Blobs
	Log        Log
	Categories request.Catalog
	// Keys has the keys of encrypted categories; nil: frames of these are refused.
	Keys Keys
	// ReadProxies returns the read proxies of the cell, the same slice until they change; nil means that no blocks are pushed.
	ReadProxies func() []ReadProxy
	// Provision tells which logs to open before their records come, by the id Owner; nil: none.
	Provision *Provision
	// Slot returns the member's current writer slot; 0 while it has none.
	Slot func() uint16
	// Owner names this batcher in the metadata engine, for operators: at most 255 bytes.
	Owner string
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer registers the metrics, until Close; nil means no metrics.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always use package time.
	Clock func() time.Time
	// Random draws jitter, the ids of blobs and of the run; nil means the machine's randomness.
	Random *entropy.Source
}

// Keys has the keys that payloads are encrypted with: encryption.Keys.
type Keys interface {
	// WritingKey returns a generation of a category's key, without waiting for anything.
	WritingKey(category, generation uint32) (*encryption.Key, error)
}

func (d *Deps) validate() error {
	var faults []error
	need := func(name string, given bool) {
		if !given {
			faults = append(faults, fmt.Errorf("batcher: Deps.%s is needed", name))
		}
	}
	need("Blobs", d.Blobs != nil)
	need("Log", d.Log != nil)
	need("Categories", d.Categories != nil)
	need("Slot", d.Slot != nil)
	if len(d.Owner) > metalog.MaxOwner {
		faults = append(faults, fmt.Errorf("batcher: Deps.Owner has %d bytes, it may have %d", len(d.Owner), metalog.MaxOwner))
	}
	return errors.Join(faults...)
}

// Batcher is an rpc.BatchService. It is safe for concurrent use.
type Batcher struct {
	cfg     Config
	deps    Deps
	blobIDs *entropy.Source
	now     func() time.Time
	metrics *batcherMetrics

	queues       *logqueue.Queues
	dedup        dedupCache
	history      *buildHistory
	sealedLogs   sealedLogs
	buffers      *buffers.Pool
	arena        *arena.Arena
	compressor   *blockCompressor
	pusher       *blockPusher // nil if nothing is pushed
	categories   request.Categories
	bodies       *budget.Budget
	recycled     sync.Pool    // of *[]routedSpan: the memory of requests' spans
	flushLatency atomic.Int64 // average duration of a flush, in nanoseconds

	// ctx is canceled when the context of Close ends, or the shutdown is complete.
	ctx    context.Context //nolint:containedctx // flushes outlive the requests that they serve
	cancel context.CancelCauseFunc
	calls  lifecycle.Calls // used by Close only
	// tasks are the timer's goroutine, one that opens logs ahead of need, one for each part that is written, and one for each call that
	// opens logs.
	tasks     sync.WaitGroup
	stopAhead context.CancelFunc
	rearm     lifecycle.WakeChannel // the next tick is due before the timer fires
	drained   chan struct{}         // closed when the batcher is closed and nothing is buffered
	stop      chan struct{}         // ends the timer's goroutine

	mu struct {
		sync.Mutex
		acc    accumulator
		counts frameCounts
		tails  producerTails
		armed  time.Time // when the timer fires; zero when it is not set
		closed bool
		idle   bool // drained is closed
	}
}

var _ rpc.BatchService = (*Batcher)(nil)

// New returns a running batcher. The error reports every violation of cfg and deps.
func New(cfg Config, deps Deps) (*Batcher, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	b := &Batcher{
		cfg:     cfg,
		deps:    deps,
		now:     deps.Clock,
		history: newBuildHistory(deps.Random.Named("run")),
		blobIDs: deps.Random.Named("blobs"),
		buffers: &buffers.Pool{},
		rearm:   lifecycle.NewWakeChannel(),
		drained: make(chan struct{}),
		stop:    make(chan struct{}),
	}
	b.categories = request.Categories{
		Catalog: deps.Categories, RetryAfter: cfg.RetryBase,
		// A sealed log belongs to a category that was deleted, and perhaps created again.
		IsStale: func(c *scribev1.Category, shard uint32) bool {
			return b.sealedLogs.hasLog(logOf(c, shard, deps.Slot()))
		},
	}
	limits := logqueue.Limits{Logs: cfg.MaxLogs, Refusals: cfg.CommitAttempts, Opening: cfg.CommitPatience}
	b.queues = logqueue.New(limits, b.backoffPause)
	b.arena = arena.New(b.buffers, cfg.MemoryBytes)
	b.bodies = budget.New("requests that the batcher reads", cfg.bodyLimit())
	b.mu.acc = newAccumulator(cfg)
	b.mu.counts.failed = make(map[string]request.Amount)
	b.metrics = newMetrics(b)
	b.pusher = newPusher(&b.cfg, &b.deps, b.metrics)
	err := b.metrics.set.Register(deps.Registerer)
	if err != nil {
		return nil, err
	}
	if b.compressor, err = newCompressor(cfg.workerCount(), b.buffers, b.blockCompressed); err != nil {
		b.metrics.set.Unregister()
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.tasks.Go(b.runTimer)
	ahead, stop := context.WithCancel(b.ctx)
	if b.stopAhead = stop; deps.Provision != nil {
		b.tasks.Go(func() { b.runAhead(ahead) })
	}
	return b, nil
}

// errClosed cancels unfinished flushes when the context of Close ends.
var errClosed = errors.New("batcher: closed before everything was durable")

// Close refuses new frames, flushes the buffered ones, and releases all resources. If ctx ends first, it fails the unfinished
// frames, whose writers get errors; the error of Close says how many they are. Repeated calls wait for the first one.
func (b *Batcher) Close(ctx context.Context) error {
	return b.calls.Close(ctx, func() error { return b.shutDown(ctx) })
}

func (b *Batcher) shutDown(ctx context.Context) error {
	var failed request.Amount
	b.stopAhead()
	b.update(func(now time.Time) {
		failed = b.mu.counts.totalFailed()
		b.mu.closed = true
		b.mu.acc.close(now)
		b.mu.tails.wakeHeld()
	})
	select {
	case <-b.drained:
	case <-ctx.Done():
		b.cancel(errClosed)
		<-b.drained // every wait of a flush ends with b.ctx
	}
	close(b.stop)
	b.tasks.Wait()
	b.compressor.close()
	b.pusher.stopPushing()
	b.cancel(nil)
	b.metrics.set.Unregister()

	b.mu.Lock()
	lost := b.mu.counts.totalFailed().Minus(failed)
	b.mu.Unlock()
	if lost.Frames > 0 {
		return fmt.Errorf("batcher: %d frames with %d messages and %d bytes could not be made durable before the end", lost.Frames, lost.Messages, lost.Bytes)
	}
	return nil
}

// update calls change under mu, then runs the actions of the accumulator without it.
func (b *Batcher) update(change func(now time.Time)) {
	b.mu.Lock()
	change(b.now())
	jobs := b.mu.acc.takeActions()
	if wake := b.mu.acc.nextTick(); !wake.IsZero() && (b.mu.armed.IsZero() || wake.Before(b.mu.armed)) {
		b.mu.armed = wake
		b.rearm.WakeUp()
	}
	if b.mu.closed && !b.mu.idle && b.mu.acc.isEmpty() {
		b.mu.idle = true
		close(b.drained)
	}
	b.mu.Unlock()
	b.runActions(jobs)
}

// runActions runs the actions of the accumulator.
func (b *Batcher) runActions(jobs driverActions) {
	b.compressor.enqueue(jobs.compress)
	b.compressor.prioritize(jobs.urge)
	for _, f := range jobs.complete {
		close(f.compressed)
	}
	for _, f := range jobs.start {
		b.tasks.Go(func() { b.writeFlush(f) })
	}
}

// runTimer calls tick at the times that the accumulator asks for.
func (b *Batcher) runTimer() {
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-b.rearm:
			b.mu.Lock()
			at := b.mu.armed
			b.mu.Unlock()
			if !at.IsZero() {
				t.Reset(at.Sub(b.now()))
			}
		case <-t.C:
			b.update(func(now time.Time) {
				b.mu.armed = time.Time{}
				b.mu.acc.tick(now)
			})
		}
	}
}

// blockCompressed is the compressor's callback: it frees the raw frames of a block.
func (b *Batcher) blockCompressed(blk *block) {
	freed := b.arena.Free(blk.appendSegments(nil))
	for _, pl := range blk.payloads {
		for i := range pl.spans {
			pl.spans[i].mem = arena.Segment{}
		}
	}
	b.update(func(now time.Time) { b.mu.acc.blockCompressed(now, blk, len(blk.stored.B), freed) })
}
