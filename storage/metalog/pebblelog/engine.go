package pebblelog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// pebbleFormat is the version of Pebble's own files. Raise it deliberately: older builds can't open a folder of a newer version.
const pebbleFormat = pebble.FormatTableFormatV6

// Errors of Open that callers branch on.
var (
	// ErrLocked means that another process, or another engine in this one, uses the folder.
	ErrLocked = errors.New("metalog: the folder is in use")
	// ErrVersion means that a newer build wrote the folder.
	ErrVersion = errors.New("metalog: the folder has a newer format")
	// ErrReplica means that the folder is that of a replica, and no journal was given, or the other way round.
	ErrReplica = errors.New("metalog: the folder does not fit to the journal")
)

// Engine is a metalog.Log on a folder. It is safe for concurrent use.
type Engine struct {
	dir     string
	opts    Options
	db      *pebble.DB
	guard   *guardFS
	lock    *pebble.Lock
	metrics *engineMetrics

	clock    watermarkClock
	table    shardTable
	tails    tailCache
	watchers watcherTable
	boundary atomic.Int64 // the published boundary
	// retired are the retired categories found when the folder was opened; the committer takes them over.
	retired categorySet

	// replica is what a replica of a journal has beyond its folder; nil for an engine of its own.
	replica *replica

	queue chan *commitRequest
	// staging is held while the committer reads the memory of callers; see request.withdraw.
	staging sync.Mutex
	// ticking is set while a request that moves the clock's bound is queued in the background.
	ticking atomic.Bool
	// copying is held while a copy of the folder exists.
	copying sync.Mutex
	stop    chan struct{} // closed to stop the committer
	stopped chan struct{} // closed when the committer has returned

	calls lifecycle.Calls

	fatal struct {
		once sync.Once
		err  error // set before failed is closed
		// halted says that only the journal is at fault: the folder can be closed. Set before failed is closed.
		halted bool
	}
	failed chan struct{}
}

var _ metalog.Log = (*Engine)(nil)

// Open opens the folder dir, and creates it if it does not exist. A folder belongs to one engine at a time.
//
// It fails with ErrLocked when another engine uses the folder, and with ErrVersion when a newer build wrote it.
func Open(dir string, opts Options) (_ *Engine, err error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{
		dir:     dir,
		opts:    opts.withDefaults(),
		queue:   make(chan *commitRequest, maxGroup),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		failed:  make(chan struct{}),
	}
	e.opts.Logger = e.opts.Logger.With(slog.String("metalog", dir))
	e.guard = &guardFS{FS: e.opts.FS, fail: e.setFailed, lost: make(chan struct{}), closing: e.calls.Draining()}
	e.guard.harmless = []string{e.guard.PathJoin(dir, checkpointName), e.guard.PathJoin(dir, copyName)}
	e.clock.wall, e.clock.lease = e.opts.Clock, e.opts.ClockLease.Microseconds()
	e.tails.limit = e.opts.TailBytes
	if opts.Journal != nil {
		if e.replica, err = newReplica(e); err != nil {
			return nil, err
		}
	}
	e.metrics = newMetrics(e)
	if err := e.openFolder(); err != nil {
		return nil, err
	}
	if err := e.guard.unlessLost(e.load); err != nil {
		return nil, errors.Join(fmt.Errorf("metalog: open %s: %w", dir, err), e.releaseFolder())
	}
	if err := e.metrics.set.Register(e.opts.Metrics); err != nil {
		return nil, errors.Join(fmt.Errorf("metalog: open %s: %w", dir, err), e.releaseFolder())
	}
	e.guard.arm()
	if e.replica != nil {
		go newCommitter(e).serveReplica()
	} else {
		go newCommitter(e).serveQueue()
	}
	return e, nil
}

// load reads the state that the engine starts with. The folder of a replica is emptied if it is damaged, to be seeded.
func (e *Engine) load() error {
	e.table.db = e.db
	if e.replica == nil {
		return e.loadFolder()
	}
	err := e.loadReplica()
	if err == nil || !isDamaged(err) || e.opts.Snapshots == nil {
		return err
	}
	if err := errors.Join(e.db.Close(), e.clearFolder(err)); err != nil {
		return err
	}
	return e.reopenFolder()
}

// reopenFolder opens the database of a replica's folder whose files were replaced, and forgets what was in memory of the former ones.
func (e *Engine) reopenFolder() error {
	e.table.forgetShards()
	e.tails.forgetChunks()
	e.replica.room.unflushed.Store(0)
	e.replica.room.failing.Store(false)
	if err := e.openDB(e.lock); err != nil {
		return err
	}
	e.table.db = e.db
	return e.loadReplica()
}

// openFolder locks the folder and opens Pebble in it.
func (e *Engine) openFolder() error {
	if err := e.guard.MkdirAll(e.dir, 0o755); err != nil {
		return fmt.Errorf("metalog: create folder %s: %w", e.dir, err)
	}
	lock, err := pebble.LockDirectory(e.dir, e.guard)
	if err != nil {
		return lockError(e.dir, err)
	}
	err = e.opts.FS.RemoveAll(e.guard.PathJoin(e.dir, copyName)) // of a process that ended while it was used
	if err == nil {
		err = e.openLocked(lock)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("metalog: open folder %s: %w", e.dir, err), lock.Close())
	}
	e.lock = lock
	return nil
}

// openLocked opens the database of a locked folder. That of a replica is emptied if it is damaged.
func (e *Engine) openLocked(lock *pebble.Lock) error {
	if e.replica == nil {
		return e.openDB(lock)
	}
	if err := finishSeed(e.opts.FS, e.dir); err != nil {
		return err
	}
	err := e.openDB(lock)
	if err == nil || !isDamaged(err) || e.opts.Snapshots == nil {
		return err
	}
	if err := e.clearFolder(err); err != nil {
		return err
	}
	return e.openDB(lock)
}

func (e *Engine) openDB(lock *pebble.Lock) error {
	cache := pebble.NewCache(e.opts.CacheBytes)
	defer cache.Unref() // from here on the database holds a reference
	o := pebbleOptions(&e.opts)
	if e.replica != nil {
		o.DisableWAL, o.MemTableStopWritesThreshold, o.L0StopWritesThreshold = true, replicaStall, replicaStall
	}
	o.FS, o.Lock, o.Cache, o.Logger, o.EventListener = e.guard, lock, cache, pebbleLogger{e.opts.Logger, e.guard}, e.events()
	return e.guard.unlessLost(func() error { // what it reads from write-ahead logs it flushes, and waits for that
		db, err := pebble.Open(e.dir, o)
		if err == nil {
			e.db = db
		}
		return err
	})
}

// pebbleOptions returns the options that every folder of logs is opened with.
func pebbleOptions(opts *Options) *pebble.Options {
	o := &pebble.Options{
		FS: opts.FS, FormatMajorVersion: pebbleFormat, MemTableSize: uint64(opts.MemTableBytes),
		// With four memory tables, a slow flush does not stop appends at once. Each flush touches all logs that are written, so the tables of level 0
		// overlap all of the next one: merged eight at a time, that one is rewritten a quarter as often as with two. Reads look at up to eight.
		MemTableStopWritesThreshold: 4, L0CompactionThreshold: 8, L0StopWritesThreshold: 1000,
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10) // for lookups of new shards and producers
	}
	return o
}

// commitSynced commits a batch and returns once it is durable. Pebble's own Commit does not return errors of the sync.
func (e *Engine) commitSynced(b *pebble.Batch) error {
	if b.Empty() {
		return nil
	}
	if err := e.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return err
	}
	return b.SyncWait()
}

// lockError explains why a folder can't be locked.
func lockError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("metalog: folder %s: no permission to write: %w", dir, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("metalog: lock folder %s: %w", dir, err)
	default: // EAGAIN, or Pebble's own error for a second lock in one process, which has no type
		return fmt.Errorf("%w: folder %s belongs to another engine; stop it, or use another folder: %w", ErrLocked, dir, err)
	}
}

// readOrigin reads where new shards begin.
func (e *Engine) readOrigin() (Origin, error) {
	lsn, _, err := e.readNumber(schema.MetaOrigin)
	if err != nil {
		return Origin{}, err
	}
	end, _, err := e.readNumber(schema.MetaOriginEnd)
	return Origin{LSN: record.LSN(lsn), End: uint64(end)}, err //nolint:gosec // Restorer.Finish wrote them from unsigned numbers
}

// Failed is closed when the engine has failed. It then answers every call with an error: the process should exit and be
// restarted.
func (e *Engine) Failed() <-chan struct{} { return e.failed }

// Err returns the error with which the engine failed, or nil.
func (e *Engine) Err() error {
	select {
	case <-e.failed:
		return e.failedError()
	default:
		return nil
	}
}

// closingError returns the error with which running calls end when the engine closes, or its folder is replaced; an engine that failed
// reports its failure.
func (e *Engine) closingError() error {
	err := e.Err()
	switch {
	case err != nil:
		return err
	case !e.calls.Closed():
		return e.replica.notServing()
	default:
		return metalog.ErrClosed
	}
}

// setFailed makes the engine refuse all calls from now on.
func (e *Engine) setFailed(err error) {
	e.fatal.once.Do(func() {
		e.fatal.err = err
		close(e.failed)
		e.opts.Logger.Error("engine failed: it refuses all calls until the process is restarted", "error", err)
	})
}

// failedError may be called only after failed was closed.
func (e *Engine) failedError() error {
	if e.fatal.halted {
		return fmt.Errorf("metalog: the replica on %s has halted: %w", e.dir, e.fatal.err)
	}
	return fmt.Errorf("metalog: the engine on %s failed: restart the process: %w", e.dir, e.fatal.err)
}

// enterCall admits a call. The caller ends it with leaveCall.
func (e *Engine) enterCall() error {
	if !e.calls.Enter() {
		return metalog.ErrClosed
	}
	err := e.Err()
	if err == nil && e.replica != nil {
		err = e.replica.enterFolder()
	}
	if err != nil {
		e.calls.Leave()
	}
	return err
}

// leaveCall ends a call that enterCall admitted.
func (e *Engine) leaveCall() {
	if e.replica != nil {
		e.replica.folder.Load().Leave()
	}
	e.calls.Leave()
}

// leaving returns a channel that is closed when the running call must end because the folder is replaced.
func (e *Engine) leaving() <-chan struct{} {
	if e.replica == nil {
		return nil
	}
	return e.replica.folder.Load().Draining()
}

// runOp has the committer execute an operation, unless its arguments are invalid.
func (e *Engine) runOp(ctx context.Context, invalid error, o stagedOp) error {
	if err := e.enterCall(); err != nil {
		return err
	}
	defer e.leaveCall()
	if invalid != nil {
		return invalid
	}
	return e.submit(ctx, o)
}

// Close implements metalog.Log. It must not be called from within a callback of Subscribe or WatchShards.
func (e *Engine) Close() error {
	ctx := context.Background()
	return e.calls.Close(ctx, func() error { return errors.Join(e.calls.Wait(ctx), e.closeFolder()) })
}

// closeFolder stops the committer and releases the folder. After a failure it does not, since Pebble's Close may never return.
func (e *Engine) closeFolder() error {
	e.metrics.set.Unregister()
	close(e.stop)
	if e.replica != nil {
		return e.replica.closeFolder()
	}
	select {
	case <-e.stopped:
	case <-e.failed:
		return e.failedError()
	}
	e.guard.armed.Store(false)
	if err := e.Err(); err != nil { // a flush failed in the meantime
		return err
	}
	err := e.guard.unlessLost(func() error {
		b := e.db.NewBatch()
		setNumber(b, schema.MetaClock, e.clock.exactBound())
		return errors.Join(e.commitSynced(b), b.Close())
	})
	return errors.Join(err, e.releaseFolder())
}

// releaseFolder closes everything that openFolder opened.
func (e *Engine) releaseFolder() error {
	return errors.Join(e.guard.unlessLost(e.db.Close), e.lock.Close())
}

// publishedStates fills in the published states of shards, and returns a watermark that holds for each. The watermark is taken
// before the states; see watermarkClock.
func (e *Engine) publishedStates(ctx context.Context, shards []record.ShardID, out []schema.State) (watermark int64, err error) {
	watermark, err = e.currentWatermark(ctx)
	if err != nil {
		return 0, err
	}
	return watermark, e.table.states(shards, out)
}

// currentWatermark returns a time W: every record that is not published when it returns has a time of at least W.
func (e *Engine) currentWatermark(ctx context.Context) (int64, error) {
	for range 3 {
		w, stale, extend := e.clock.watermark()
		if !stale {
			if extend {
				e.extendBound()
			}
			return w, nil
		}
		// Nothing was committed for longer than a lease. Wait for the bound to move, instead of reporting an old time.
		if err := e.submit(ctx, tickOp{}); err != nil {
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			if e.replica != nil && e.Err() == nil {
				break // what the bound allows is true for ever; another replica leads now, or the journal is away
			}
			return 0, err
		}
	}
	w, _, _ := e.clock.watermark() // the wall clock runs faster than the bound moves
	return w, nil
}

// extendBound moves the clock's bound without waiting for it.
func (e *Engine) extendBound() {
	if e.ticking.Swap(true) {
		return
	}
	select {
	case e.queue <- newRequest(tickOp{}):
	default: // the requests that fill the queue move the bound as well
		e.ticking.Store(false)
	}
}

func publicState(id record.ShardID, s schema.State, watermark int64) metalog.State {
	return metalog.State{
		Shard:     id,
		FirstLSN:  s.First,
		NextLSN:   s.Next,
		Epoch:     s.Epoch,
		Sealed:    s.Sealed,
		LastTime:  s.LastTime,
		Watermark: watermark,
		Origin:    s.Origin,
	}
}

var _ vfs.FS = (*guardFS)(nil)
