package etcdkv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/backoff"
	"scribe/internal/base/lifecycle"
	"scribe/storage/kv"
)

// ErrWentBack means that etcd is at an earlier revision than it was: it was restored from a backup, or is another cluster. Nothing that it
// says can be relied on until every process of the cell was restarted.
var ErrWentBack = errors.New("etcdkv: etcd went back to an earlier revision")

// ErrEnded means that the store has ended for good (EndStore). The transaction changed nothing.
var ErrEnded = errors.New("etcdkv: the store has ended: another one goes on with its content")

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
	// ProgressEvery is how often a watch asks how far it is, also while nothing changes; 0 means 5 s.
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
	if c.RequestTimeout < 0 || c.ProgressEvery < 0 || c.HistoryEvents < 0 {
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
	ctx   context.Context //nolint:containedctx // of watches; it ends at Close
	end   context.CancelFunc
	// base is the base of revisions once it is known. It never changes.
	base atomic.Pointer[uint64]
	// seen is the newest revision that etcd told, and cluster is who told it; 0 before the first answer.
	seen    atomic.Int64
	cluster atomic.Uint64
	// wentBack is the ErrWentBack that every call returns since etcd is not what it was.
	wentBack atomic.Pointer[error]
}

var _ kv.Store = (*Store)(nil)

// New returns a store. It does not ask etcd, which may be away.
func New(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 5*time.Second)
	cfg.ProgressEvery = cmp.Or(cfg.ProgressEvery, 5*time.Second)
	cfg.HistoryEvents = cmp.Or(cfg.HistoryEvents, 100_000)
	s := &Store{cfg: cfg}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s, nil
}

// enterCall admits a call, which ends with s.calls.Leave.
func (s *Store) enterCall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.wentBack.Load(); err != nil {
		return *err
	}
	if !s.calls.Enter() {
		return kv.ErrClosed
	}
	return nil
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
	if err := s.loadBase(ctx); err != nil {
		return kv.Entry{}, err
	}
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
	if err := s.enterCall(ctx); err != nil {
		return kv.RangePage{}, err
	}
	defer s.calls.Leave()
	if err := s.loadBase(ctx); err != nil {
		return kv.RangePage{}, err
	}
	return s.readPageSoon(ctx, r, 0)
}

// readPageSoon reads a page in the time that a call may take.
func (s *Store) readPageSoon(ctx context.Context, r kv.KeyRange, revision int64) (kv.RangePage, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*s.cfg.RequestTimeout)
	defer cancel()
	return s.readPage(ctx, r, revision)
}

// ReadAll implements kv.Snapshotter.
func (s *Store) ReadAll(ctx context.Context, fn func(kv.Entry) error) (uint64, error) {
	if err := s.enterCall(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	if err := s.loadBase(ctx); err != nil {
		return 0, err
	}
	revision := uint64(0)
	for after, more := "", true; more; {
		p, err := s.readPageSoon(ctx, kv.KeyRange{After: after, Limit: kv.MaxRange}, s.etcdRevision(revision))
		switch {
		case errors.Is(err, rpctypes.ErrCompacted):
			return 0, fmt.Errorf("etcdkv: read all keys at revision %d: etcd's history was compacted meanwhile: %w", revision, kv.ErrCompacted)
		case err != nil:
			return 0, err
		}
		for _, e := range p.Entries {
			if err := fn(e); err != nil {
				return 0, err
			}
			after = e.Key
		}
		revision, more = p.Revision, p.More
	}
	return revision, nil
}

// Close implements kv.Store. A Commit that runs is waited for: ended early, it would have an unknown outcome.
func (s *Store) Close() error {
	return s.calls.Close(context.Background(), func() error {
		s.end()
		return s.calls.Wait(context.Background())
	})
}

// entryOf is an entry as users of package kv see it.
func (s *Store) entryOf(e *mvccpb.KeyValue) kv.Entry {
	return kv.Entry{Key: string(e.Key[len(s.cfg.Prefix):]), Value: e.Value, Revision: s.revisionOf(e.ModRevision)}
}

// getKeys asks for keys; the answer is linearizable.
func (s *Store) getKeys(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	before := s.seen.Load()
	// A member that is cut off says so at once, and the client asks another one.
	asked, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.cfg.RequestTimeout)
	defer cancel()
	res, err := s.cfg.Client.Get(asked, key, options...)
	if err != nil {
		return nil, s.explainError(ctx, "read", err)
	}
	return res, s.checkAnswer(before, res.Header)
}

// transact runs a transaction. Who is refused because a member has no leader asks again: nothing was proposed.
func (s *Store) transact(ctx context.Context, conditions []clientv3.Cmp, changes, looks []clientv3.Op) (*clientv3.TxnResponse, error) {
	before := s.seen.Load()
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), s.cfg.RequestTimeout)
	defer cancel()
	for attempts := 1; ; attempts++ {
		res, err := s.cfg.Client.Txn(ctx).If(conditions...).Then(changes...).Else(looks...).Commit()
		switch {
		case err == nil:
			return res, s.checkAnswer(before, res.Header)
		case !errors.Is(err, rpctypes.ErrNoLeader), backoff.Sleep(ctx, repeating.Mean(attempts)) != nil:
			return nil, err
		}
	}
}

// checkAnswer takes note of the revision of a linearizable answer. before is what had been seen when the request was sent.
func (s *Store) checkAnswer(before int64, header *etcdserverpb.ResponseHeader) error {
	s.cluster.CompareAndSwap(0, header.ClusterId)
	if cluster := s.cluster.Load(); cluster != header.ClusterId {
		return s.goBack(fmt.Errorf("%w: it is cluster %x, it was %x", ErrWentBack, header.ClusterId, cluster))
	}
	if header.Revision < before {
		return s.goBack(fmt.Errorf("%w: %d, it was at %d", ErrWentBack, header.Revision, before))
	}
	for {
		seen := s.seen.Load()
		if seen >= header.Revision || s.seen.CompareAndSwap(seen, header.Revision) {
			return nil
		}
	}
}

// goBack makes every later call fail.
func (s *Store) goBack(err error) error {
	s.wentBack.CompareAndSwap(nil, &err)
	return *s.wentBack.Load()
}

// explainError is the error of a request of a call.
func (s *Store) explainError(ctx context.Context, what string, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(err, ErrWentBack):
		return err
	case cause != nil:
		return cause
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("etcdkv: %s: no answer within %v, is a majority of etcd's members there?: %w", what, s.cfg.RequestTimeout, err)
	}
	return fmt.Errorf("etcdkv: %s: %w", what, err)
}
