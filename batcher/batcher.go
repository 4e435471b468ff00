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

	"scribe/internal/base/buffers"
	"scribe/internal/format/record"
	"scribe/internal/role/budget"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Blobs is what a batcher needs of the object store: a blob.Store.
type Blobs interface {
	Put(ctx context.Context, key string, parts ...[]byte) error
}

// Log is what a batcher needs of the metadata engine: a metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error)
}

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. Callers do not change it.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are what a batcher works with. They outlive it.
type Deps struct {
	Blobs      Blobs
	Log        Log
	Categories Categories
	// Slot is the member's present writer slot, 0 while it has none.
	Slot func() uint16
	// Owner names this batcher to the metadata engine, for people: at most 255 bytes.
	Owner string
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always run by package time.
	Clock func() time.Time
}

func (d *Deps) validate() error {
	var faults []error
	for _, need := range []struct {
		name    string
		missing bool
	}{
		{"Blobs", d.Blobs == nil},
		{"Log", d.Log == nil},
		{"Categories", d.Categories == nil},
		{"Slot", d.Slot == nil},
	} {
		if need.missing {
			faults = append(faults, fmt.Errorf("batcher: Deps.%s is needed", need.name))
		}
	}
	if len(d.Owner) > metalog.MaxOwner {
		faults = append(faults, fmt.Errorf("batcher: Deps.Owner has %d bytes, it may have %d", len(d.Owner), metalog.MaxOwner))
	}
	return errors.Join(faults...)
}

// Batcher is an rpc.BatchService. It is safe for concurrent use.
type Batcher struct {
	cfg     Config
	deps    Deps
	now     func() time.Time
	metrics *metrics

	ledger     *ledger
	builds     *builds
	endedLogs  endedLogs
	buffers    *buffers.Pool
	arena      *arena
	compressor *compressor
	bodies     *budget.Budget
	recycled   sync.Pool    // of *[]located: the memory of requests' pieces
	pace       atomic.Int64 // how long flushes take, in nanoseconds

	// ctx ends when Close loses its patience.
	ctx    context.Context //nolint:containedctx // flushes outlive the requests that they serve
	cancel context.CancelCauseFunc
	// tasks are the timer's goroutine, one for each part that is written, and one for each call that opens logs.
	tasks   sync.WaitGroup
	rearm   chan struct{} // buffered: the next wake is earlier than the timer
	drained chan struct{} // closed when the batcher is closed and nothing is buffered
	stop    chan struct{} // ends the timer's goroutine
	ended   chan struct{} // closed when Close has released everything

	mu struct {
		sync.Mutex
		acc    accumulator
		counts counts
		armed  time.Time // when the timer fires; zero when it is not set
		closed bool
		idle   bool // drained is closed
	}
}

var _ rpc.BatchService = (*Batcher)(nil)

// New returns a running batcher.
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
		ledger:  newLedger(cfg.MaxLogs),
		builds:  newBuilds(),
		buffers: &buffers.Pool{},
		rearm:   make(chan struct{}, 1),
		drained: make(chan struct{}),
		stop:    make(chan struct{}),
		ended:   make(chan struct{}),
	}
	b.arena = newArena(b.buffers, cfg.MemoryBytes)
	b.bodies = budget.New("requests that the batcher reads", cfg.bodies())
	b.mu.acc = newAccumulator(cfg)
	b.mu.counts.failed = make(map[scribev1.Reason]amount)
	b.metrics = newMetrics(b)
	if err := b.metrics.register(deps.Registerer); err != nil {
		return nil, err
	}
	var err error
	if b.compressor, err = newCompressor(cfg.compressors(), b.buffers, b.compressed); err != nil {
		b.metrics.unregister(deps.Registerer)
		return nil, err
	}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	b.tasks.Go(b.timer)
	return b, nil
}

// errClosed ends what is still under way when Close is out of time.
var errClosed = errors.New("batcher: closed before everything was durable")

// Close refuses new frames, writes what it holds, and releases what it has. When ctx ends first, what is still under way is given
// up and the error says how much; its writers are told. Calling it again waits for the first call.
func (b *Batcher) Close(ctx context.Context) error {
	b.mu.Lock()
	again := b.mu.closed
	b.mu.closed = true
	failed := b.mu.counts.failures()
	if !again {
		b.mu.acc.close(b.now())
	}
	jobs := b.settle()
	b.mu.Unlock()
	if again {
		select {
		case <-b.ended:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	b.drive(jobs)
	select {
	case <-b.drained:
	case <-ctx.Done():
		b.cancel(errClosed)
		<-b.drained // every wait of a flush ends with b.ctx
	}
	close(b.stop)
	b.tasks.Wait()
	b.compressor.close()
	b.cancel(nil)
	b.metrics.unregister(b.deps.Registerer)
	close(b.ended)

	b.mu.Lock()
	lost := b.mu.counts.failures().minus(failed)
	b.mu.Unlock()
	if lost.frames > 0 {
		return fmt.Errorf("batcher: %d frames with %d messages and %d bytes could not be made durable before the end", lost.frames, lost.messages, lost.bytes)
	}
	return nil
}

// settle takes what is to be done, and looks whether the timer must fire earlier and whether a closed batcher is empty. The
// caller holds mu, and calls drive with the result afterwards, without it.
func (b *Batcher) settle() ready {
	jobs := b.mu.acc.ready()
	if wake := b.mu.acc.wake(); !wake.IsZero() && (b.mu.armed.IsZero() || wake.Before(b.mu.armed)) {
		b.mu.armed = wake
		select {
		case b.rearm <- struct{}{}:
		default: // it will look anyway
		}
	}
	if b.mu.closed && !b.mu.idle && b.mu.acc.empty() {
		b.mu.idle = true
		close(b.drained)
	}
	return jobs
}

// drive does what the accumulator says.
func (b *Batcher) drive(jobs ready) {
	if len(jobs.compress) > 0 {
		b.compressor.add(jobs.compress)
	}
	if len(jobs.urge) > 0 {
		b.compressor.urge(jobs.urge)
	}
	for _, f := range jobs.complete {
		close(f.compressed)
	}
	for _, f := range jobs.start {
		b.tasks.Go(func() { b.write(f) })
	}
}

// timer tells the accumulator of the time when it asked for that.
func (b *Batcher) timer() {
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
			b.mu.Lock()
			b.mu.armed = time.Time{}
			b.mu.acc.tick(b.now())
			jobs := b.settle()
			b.mu.Unlock()
			b.drive(jobs)
		}
	}
}

// compressed is the compressor's callback.
func (b *Batcher) compressed(blk *block) {
	var segments []segment
	for _, pl := range blk.payloads {
		for i := range pl.pieces {
			segments = append(segments, pl.pieces[i].mem)
			pl.pieces[i].mem = segment{}
		}
	}
	freed := b.arena.release(segments)
	b.mu.Lock()
	b.mu.acc.compressed(blk, len(blk.stored.B), freed)
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
}
