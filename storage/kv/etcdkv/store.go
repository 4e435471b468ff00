package etcdkv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/lifecycle"
	"scribe/storage/kv"
)

// ErrWentBack means that etcd is at an earlier revision than it was: it was restored from a backup, or is another cluster. Nothing that it
// says can be relied on until every process of the cell was restarted.
var ErrWentBack = errors.New("etcdkv: etcd went back to an earlier revision")

// Config configures a store.
type Config struct {
	// Client reaches the cluster. It belongs to the caller, who closes it after the store.
	Client *clientv3.Client
	// Prefix is in front of all keys: "scribe/CELL/kv/".
	Prefix string
	// RequestTimeout bounds each request to etcd; 0 means 5 s. A transaction without an answer by then has an unknown outcome.
	RequestTimeout time.Duration
	// HistoryEvents is how many events may wait for the function of a watch before that is told that it is too slow (ErrCompacted); 0 means
	// 100,000.
	HistoryEvents int
	// ProgressEvery is how often a watch asks how far it is; 0 means 5 s. A quiet watch that is opened again goes on from there, not from its
	// last change, which may be compacted by then. So it must be shorter than what whoever compacts etcd keeps.
	ProgressEvery time.Duration
}

// maxPrefix bounds the prefix in bytes.
const maxPrefix = 512

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("no client"))
	}
	if !strings.HasSuffix(c.Prefix, "/") || len(c.Prefix) > maxPrefix {
		errs = append(errs, fmt.Errorf("prefix %q: want up to %d bytes that end with a slash", c.Prefix, maxPrefix))
	}
	if c.RequestTimeout < 0 || c.HistoryEvents < 0 || c.ProgressEvery < 0 {
		errs = append(errs, errors.New("a negative limit"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcdkv: invalid configuration: %w", err)
	}
	return nil
}

// Store is a kv.Store in etcd. Besides the errors of package kv, its calls may fail with ErrWentBack.
type Store struct {
	cfg   Config
	calls lifecycle.Calls
	ctx   context.Context //nolint:containedctx // of all calls; it ends at Close
	end   context.CancelFunc
	// seen is the newest revision that etcd told.
	seen atomic.Int64
}

var _ kv.Store = (*Store)(nil)

// New returns a store. It does not ask etcd, which may be away.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 5*time.Second)
	cfg.HistoryEvents = cmp.Or(cfg.HistoryEvents, 100_000)
	cfg.ProgressEvery = cmp.Or(cfg.ProgressEvery, 5*time.Second)
	s := &Store{cfg: cfg}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// enterCall admits a call, and returns a context that ends with ctx and with the store. leave ends the call.
func (s *Store) enterCall(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if !s.calls.Enter() {
		return nil, nil, kv.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(kv.ErrClosed) })
	return ctx, func() { stop(); cancel(nil); s.calls.Leave() }, nil
}

// Get implements kv.Store.
func (s *Store) Get(ctx context.Context, key string) (kv.Entry, error) {
	if err := kv.ValidateKey(key); err != nil {
		return kv.Entry{}, err
	}
	ctx, leave, err := s.enterCall(ctx)
	if err != nil {
		return kv.Entry{}, err
	}
	defer leave()
	res, err := s.getKeys(ctx, s.cfg.Prefix+key)
	switch {
	case err != nil:
		return kv.Entry{}, err
	case len(res.Kvs) == 0:
		return kv.Entry{}, kv.ErrNotFound
	}
	return s.entryOf(res.Kvs[0]), nil
}

// Range implements kv.Store.
func (s *Store) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	r, err := kv.ValidateRange(r)
	if err != nil {
		return kv.RangePage{}, err
	}
	ctx, leave, err := s.enterCall(ctx)
	if err != nil {
		return kv.RangePage{}, err
	}
	defer leave()
	return s.readPage(ctx, r)
}

// Close implements kv.Store.
func (s *Store) Close() error {
	return s.calls.Close(context.Background(), func() error {
		s.end()
		return s.calls.Wait(context.Background())
	})
}

// entryOf is an entry as users of package kv see it.
func (s *Store) entryOf(e *mvccpb.KeyValue) kv.Entry {
	return kv.Entry{Key: string(e.Key[len(s.cfg.Prefix):]), Value: e.Value, Revision: uint64(e.ModRevision)} //nolint:gosec // revisions are not negative
}

// getKeys asks for keys; the answer is linearizable.
func (s *Store) getKeys(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	before := s.seen.Load()
	asked, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	res, err := s.cfg.Client.Get(asked, key, options...)
	if err != nil {
		return nil, s.explainError(ctx, "read", err)
	}
	return res, s.checkRevision(before, res.Header.Revision)
}

// checkRevision takes note of the revision of an answer. before is what had been seen when the request was sent.
func (s *Store) checkRevision(before, revision int64) error {
	if revision < before {
		return fmt.Errorf("%w: %d, it was at %d", ErrWentBack, revision, before)
	}
	s.noteRevision(revision)
	return nil
}

func (s *Store) noteRevision(revision int64) {
	for {
		seen := s.seen.Load()
		if seen >= revision || s.seen.CompareAndSwap(seen, revision) {
			return
		}
	}
}

// explainError is the error of a request of a call.
func (s *Store) explainError(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("etcdkv: %s: %w", what, err)
}
