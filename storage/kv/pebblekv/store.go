package pebblekv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/lifecycle"
	"scribe/storage/kv"
	"scribe/storage/kv/internal/history"
)

// Store is a kv.Store on Pebble.
type Store struct {
	logger  *slog.Logger
	metrics *storeMetrics
	db      *pebble.DB
	history *history.EventLog

	// queue holds transactions for the committer. It is bounded; when it is full callers wait.
	queue chan *pendingCommit
	// done is closed when the committer has returned, which it does after calls have drained.
	done chan struct{}
	// broken is set by the first failed write, and never reset.
	broken atomic.Pointer[error]
	// failed is closed when broken is set.
	failed chan struct{}

	mu struct {
		sync.Mutex
		// view is the state that reads see; all of it is durable.
		view *storeView
	}
	// calls are running reads and commits.
	calls lifecycle.Calls
}

var _ kv.Store = (*Store)(nil)

// storeView is a durable state of the store, shared by the reads that began while it was the newest.
type storeView struct {
	snapshot *pebble.Snapshot
	revision uint64
	// refs counts the references of the store and of reads; Store.mu guards it.
	refs int
}

// Open opens the store in a folder, and creates it if it does not exist.
func Open(cfg Config, deps Deps) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.FS == nil {
		deps.FS = vfs.Default
	}
	m, err := newMetrics(deps.Registerer)
	if err != nil {
		return nil, err
	}
	s := &Store{
		logger:  deps.Logger,
		metrics: m,
		queue:   make(chan *pendingCommit, cfg.MaxWaiting),
		done:    make(chan struct{}),
		failed:  make(chan struct{}),
	}
	if s.db, err = pebble.Open(cfg.Dir, s.pebbleOptions(cfg, deps.FS)); err != nil {
		return nil, fmt.Errorf("pebblekv: open %s: %w", cfg.Dir, err)
	}
	revision, err := s.loadRevision()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pebblekv: open %s: %w", cfg.Dir, err), s.db.Close())
	}
	s.history = history.New(revision, history.Limits{Events: cfg.HistoryEvents, Bytes: cfg.HistoryBytes})
	s.mu.view = &storeView{snapshot: s.db.NewSnapshot(), revision: revision, refs: 1}
	go s.commitLoop(revision)
	return s, nil
}

// pebbleOptions returns options for a store of some MB with rare writes.
func (s *Store) pebbleOptions(cfg Config, fs vfs.FS) *pebble.Options {
	log := pebbleLogger{s}
	return &pebble.Options{
		FS:                 fs,
		CacheSize:          cfg.CacheBytes,
		MemTableSize:       uint64(cfg.MemTableBytes),
		MaxOpenFiles:       100,
		FormatMajorVersion: pebble.FormatTableFormatV6,
		Logger:             log,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { log.Errorf("background error: %v", err) },
			DataCorruption:  func(info pebble.DataCorruptionInfo) { log.Errorf("%s", info) },
		},
	}
}

// loadRevision returns the store's revision, and writes the state of a new store.
func (s *Store) loadRevision() (uint64, error) {
	stored, closer, err := s.db.Get(stateKey)
	if err == nil {
		revision, perr := parseState(stored)
		return revision, errors.Join(perr, closer.Close())
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return 0, corruptIfSo(err)
	}
	if err := s.db.Set(stateKey, encodeState(0), pebble.Sync); err != nil {
		return 0, err
	}
	return 0, s.failedError()
}

// enterCall admits a call. The caller ends it with calls.Leave.
func (s *Store) enterCall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.calls.Enter() {
		return kv.ErrClosed
	}
	return nil
}

// acquireView returns the newest durable state, for an admitted call. The caller returns it with releaseView.
func (s *Store) acquireView() *storeView {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.view.refs++
	return s.mu.view
}

// releaseView drops a reference to a view.
func (s *Store) releaseView(v *storeView) {
	s.mu.Lock()
	v.refs--
	last := v.refs == 0
	s.mu.Unlock()
	if last {
		if err := v.snapshot.Close(); err != nil {
			s.logger.Error("control store snapshot not closed", "error", err)
		}
	}
}

// Get implements kv.Store.
func (s *Store) Get(ctx context.Context, key string) (kv.Entry, error) {
	if err := kv.ValidateKey(key); err != nil {
		return kv.Entry{}, err
	}
	if err := s.enterCall(ctx); err != nil {
		return kv.Entry{}, err
	}
	defer s.calls.Leave()
	v := s.acquireView()
	defer s.releaseView(v)
	return readEntry(v.snapshot, key)
}

// readEntry reads one entry. The value is a copy.
func readEntry(r pebble.Reader, key string) (kv.Entry, error) {
	stored, closer, err := r.Get(storedKey(key))
	if err != nil {
		if errors.Is(err, pebble.ErrNotFound) {
			return kv.Entry{}, kv.ErrNotFound
		}
		return kv.Entry{}, fmt.Errorf("pebblekv: read key %q: %w", key, corruptIfSo(err))
	}
	revision, value, err := parseValue(key, stored)
	if err == nil {
		value = append(make([]byte, 0, len(value)), value...)
	}
	return kv.Entry{Key: key, Value: value, Revision: revision}, errors.Join(err, closer.Close())
}

// Range implements kv.Store.
func (s *Store) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	r, err := kv.ValidateRange(r)
	if err != nil {
		return kv.RangePage{}, err
	}
	if err := s.enterCall(ctx); err != nil {
		return kv.RangePage{}, err
	}
	defer s.calls.Leave()
	v := s.acquireView()
	defer s.releaseView(v)
	p, err := readPage(ctx, v, r)
	if err != nil {
		return kv.RangePage{}, fmt.Errorf("pebblekv: read keys with prefix %q after %q: %w", r.Prefix, r.After, corruptIfSo(err))
	}
	return p, nil
}

// ReadAll implements kv.Snapshotter.
func (s *Store) ReadAll(ctx context.Context, fn func(kv.Entry) error) (uint64, error) {
	if err := s.enterCall(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	v := s.acquireView()
	defer s.releaseView(v)
	for after, more := "", true; more; {
		p, err := readPage(ctx, v, kv.KeyRange{After: after, Limit: kv.MaxRange})
		if err != nil {
			return 0, fmt.Errorf("pebblekv: read all keys, after %q: %w", after, corruptIfSo(err))
		}
		for _, e := range p.Entries {
			if err := fn(e); err != nil {
				return 0, err
			}
			after = e.Key
		}
		more = p.More
	}
	return v.revision, nil
}

// readPage reads a page of a view.
func readPage(ctx context.Context, v *storeView, r kv.KeyRange) (p kv.RangePage, err error) {
	lower := storedKey(r.Prefix)
	if r.After >= r.Prefix {
		lower = append(storedKey(r.After), 0)
	}
	it, err := v.snapshot.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: prefixEnd(storedKey(r.Prefix))})
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	p.Revision = v.revision
	size := 0
	for ok := it.First(); ok; ok = it.Next() {
		key := string(it.Key()[1:])
		stored, err := it.ValueAndErr()
		if err != nil {
			return p, err
		}
		size += len(key) + len(stored)
		if len(p.Entries) == r.Limit || (len(p.Entries) > 0 && size > kv.MaxRangeBytes) {
			p.More = true
			break
		}
		revision, value, err := parseValue(key, stored)
		if err != nil {
			return p, err
		}
		p.Entries = append(p.Entries, kv.Entry{Key: key, Value: append(make([]byte, 0, len(value)), value...), Revision: revision})
		if len(p.Entries)%256 == 0 && ctx.Err() != nil {
			return p, ctx.Err()
		}
	}
	return p, it.Error()
}

// Watch implements kv.Store.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.history.Watch(ctx, prefix, after, fn)
}

// Close implements kv.Store. Transactions that wait are refused with kv.ErrClosed.
func (s *Store) Close() error {
	ctx := context.Background()
	return s.calls.Close(ctx, func() error {
		<-s.done
		s.history.Close()
		err := s.calls.Wait(ctx)
		s.releaseView(s.mu.view) // no other goroutine is left that could replace it
		if err = errors.Join(err, s.db.Close()); err != nil {
			return fmt.Errorf("pebblekv: close: %w", err)
		}
		return nil
	})
}

// storedKey returns the key in Pebble of a key of the store.
func storedKey(key string) []byte {
	b := make([]byte, 0, 2+len(key))
	return append(append(b, spaceKey), key...)
}

// prefixEnd returns the first key after all keys that begin with prefix. It exists, because prefix begins with spaceKey.
func prefixEnd(prefix []byte) []byte {
	b := append([]byte(nil), prefix...)
	for i := len(b) - 1; ; i-- {
		if b[i] != 0xff {
			b[i]++
			return b[:i+1]
		}
	}
}

// corruptIfSo makes Pebble's corruption errors match kv.ErrCorrupt.
func corruptIfSo(err error) error {
	if pebble.IsCorruptionError(err) && !errors.Is(err, kv.ErrCorrupt) {
		return fmt.Errorf("%w: %w", kv.ErrCorrupt, err)
	}
	return err
}

// Failed is closed when the store has failed: it refuses transactions until it is opened again, so the process should exit and be
// restarted.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err returns the error because of which the store refuses transactions, or nil while it accepts them.
func (s *Store) Err() error { return s.failedError() }

// setFailed makes the store refuse transactions from now on.
func (s *Store) setFailed(err error) {
	if s.broken.CompareAndSwap(nil, &err) {
		close(s.failed)
		s.logger.Error("control store failed: it refuses transactions until it is opened again", "error", err)
	}
}

// failedError returns the error of setFailed, or nil.
func (s *Store) failedError() error {
	if err := s.broken.Load(); err != nil {
		return fmt.Errorf("pebblekv: an earlier write failed with unknown outcome: restart the process: %w", *err)
	}
	return nil
}

// pebbleLogger forwards Pebble's log messages.
type pebbleLogger struct{ s *Store }

// Infof logs messages that help to debug Pebble.
func (l pebbleLogger) Infof(format string, args ...any) {
	if l.s.logger.Enabled(context.Background(), slog.LevelDebug) {
		l.s.logger.Debug("pebble", "text", fmt.Sprintf(format, args...))
	}
}

// Errorf logs errors that Pebble survives.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.logger.Error("pebble error", "error", fmt.Errorf(format, args...))
}

// Fatalf is called when a write to the log or the manifest failed. Pebble expects it to end the process. Here it is enough that
// nothing is acknowledged any more: the committer checks broken before it publishes or answers anything.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.setFailed(fmt.Errorf(format, args...))
}
