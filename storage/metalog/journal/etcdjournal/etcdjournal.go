package etcdjournal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/schema"
)

// Journal is a handle of a journal in etcd.
type Journal struct {
	config Config
	client *clientv3.Client

	// running ends when the handle closes; tasks are its goroutines.
	running context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	// seen is the highest revision of the head that was returned.
	seen atomic.Uint64
	// used is when a Swap was last called, in nanoseconds of the clock; upkeep is for those who swap.
	used atomic.Int64
	// inUse is the size of etcd's database when it was last asked.
	inUse atomic.Int64
	// neglected is what Neglected returns; nil for nothing.
	neglected atomic.Pointer[error]
	// members is what Members returns.
	members atomic.Pointer[[]MemberStatus]

	watch headWatch
}

var _ journal.Journal = (*Journal)(nil)

// Open returns a handle. It does not wait for the cluster.
func Open(c Config) (*Journal, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	running, stop := context.WithCancel(context.Background())
	j := &Journal{config: c, client: c.Client, running: running, stop: stop}
	j.watch.mu.changed = make(chan struct{})
	j.tasks.Go(j.keepUp)
	return j, nil
}

// Close implements journal.Journal.
func (j *Journal) Close() error {
	j.stop()
	j.tasks.Wait()
	return nil
}

func (j *Journal) headKey() string { return j.config.Prefix + "head" }

func (j *Journal) entryKey(seq uint64) string { return fmt.Sprintf("%se/%016x", j.config.Prefix, seq) }

// partsPrefix is in front of the parts of all tries of an entry.
func (j *Journal) partsPrefix(seq uint64) string {
	return fmt.Sprintf("%sp/%016x/", j.config.Prefix, seq)
}

func (j *Journal) partKey(seq uint64, try schema.ID, part int) string {
	return fmt.Sprintf("%s%v/%04x", j.partsPrefix(seq), try, part)
}

// request returns the context of one request: it ends with ctx, with the handle, and after the time limit.
func (j *Journal) request(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, j.config.RequestTimeout)
	unlink := context.AfterFunc(j.running, cancel)
	return ctx, func() { unlink(); cancel() }
}

// failed wraps the error of a request. Without another sentinel its outcome is unknown.
func (j *Journal) failed(ctx context.Context, what string, err error) error {
	switch {
	case j.running.Err() != nil:
		return journal.ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("etcd journal: %s: %w", what, ctx.Err())
	case errors.Is(err, rpctypes.ErrNoSpace):
		return &journal.FullError{Detail: "etcd has reached its quota: after the next snapshot, compact and defragment it, and run 'etcdctl alarm disarm'"}
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %s: %w: start etcd with --max-request-bytes=2097152", journal.ErrInvalid, what, err)
	default:
		return fmt.Errorf("etcd journal: %s under %q: %w", what, j.config.Prefix, err)
	}
}

// enterCall refuses calls of a closed handle.
func (j *Journal) enterCall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if j.running.Err() != nil {
		return journal.ErrClosed
	}
	return nil
}

// Head implements journal.Journal.
func (j *Journal) Head(ctx context.Context) (journal.Head, error) {
	if err := j.enterCall(ctx); err != nil {
		return journal.Head{}, err
	}
	seen := j.seen.Load()
	c, cancel := j.request(ctx)
	defer cancel()
	resp, err := j.client.Get(c, j.headKey())
	if err != nil {
		return journal.Head{}, j.failed(ctx, "get the head", err)
	}
	return j.parseHead(seen, resp.Kvs)
}

// parseHead decodes the head of an answer. seen is the highest revision before the question: of two answers that come at the same
// time, either may be the older one.
func (j *Journal) parseHead(seen uint64, kvs []*mvccpb.KeyValue) (journal.Head, error) {
	var head journal.Head
	if len(kvs) > 0 {
		var err error
		if head, err = schema.ParseHead(kvs[0].Value); err != nil {
			return journal.Head{}, fmt.Errorf("etcd journal: %s: %w", j.headKey(), err)
		}
		head.Revision = uint64(kvs[0].ModRevision)
	}
	return head, j.noteRevision(seen, head.Revision)
}

// noteRevision notices an etcd that was set back.
func (j *Journal) noteRevision(seen, revision uint64) error {
	if revision < seen {
		return &journal.WentBackError{Detail: fmt.Sprintf("key %q of etcd has revision %d, after revision %d was seen", j.headKey(), revision, seen)}
	}
	for {
		old := j.seen.Load()
		if old >= revision || j.seen.CompareAndSwap(old, revision) {
			return nil
		}
	}
}

// Swap implements journal.Journal.
func (j *Journal) Swap(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	if err := j.enterCall(ctx); err != nil {
		return journal.Head{}, err
	}
	if err := journal.ValidateSwap(known, next, entry); err != nil {
		return journal.Head{}, err
	}
	j.used.Store(time.Now().UnixNano())
	value, err := schema.AppendHead(nil, next)
	if err != nil {
		return journal.Head{}, fmt.Errorf("%w: %w", journal.ErrInvalid, err)
	}
	ops := []clientv3.Op{clientv3.OpPut(j.headKey(), string(value))}
	if entry != nil {
		stored, err := j.storeEntry(ctx, next, entry)
		if err != nil {
			return journal.Head{}, err
		}
		ops = append(ops, clientv3.OpPut(j.entryKey(next.Seq), string(stored)))
	}
	return j.swapHead(ctx, known, next, ops)
}

func (j *Journal) swapHead(ctx context.Context, known, next journal.Head, ops []clientv3.Op) (journal.Head, error) {
	seen := max(j.seen.Load(), known.Revision)
	c, cancel := j.request(ctx)
	defer cancel()
	resp, err := j.client.Txn(c).If(clientv3.Compare(clientv3.ModRevision(j.headKey()), "=", int64(known.Revision))).
		Then(ops...).Else(clientv3.OpGet(j.headKey())).Commit()
	if err != nil {
		return journal.Head{}, j.failed(ctx, "swap the head", err)
	}
	if resp.Succeeded {
		next.Revision = uint64(resp.Header.Revision)
		return next, j.noteRevision(seen, next.Revision)
	}
	var present []*mvccpb.KeyValue
	if len(resp.Responses) > 0 {
		present = resp.Responses[0].GetResponseRange().GetKvs()
	}
	head, err := j.parseHead(seen, present)
	if err != nil {
		return journal.Head{}, err
	}
	return journal.Head{}, &journal.LostError{Head: head}
}

// checkFull refuses entries when the database is large.
func (j *Journal) checkFull() error {
	if size := j.inUse.Load(); size >= j.config.FullBytes {
		return &journal.FullError{Detail: fmt.Sprintf("etcd's database has %d MiB in use, the limit is %d MiB; entries are removed after the next snapshot, "+
			"which needs the blob store; see who else writes to this etcd", size>>20, j.config.FullBytes>>20)}
	}
	return nil
}

// SetInUse makes the handle believe, until the next look, that the database is full, or that it is empty. It is for tests: a
// database of that size takes long to fill.
func (j *Journal) SetInUse(full bool) {
	j.inUse.Store(0)
	if full {
		j.inUse.Store(j.config.FullBytes)
	}
}
