package sim

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

// etcd stands for the etcd of a cell of nodes, behind the seams for it, journal.Journal and kv.Store. It has no members: it is always right,
// but it may be slow, cut off from a host, or lose answers.
type etcd struct {
	journal *memjournal.Store
	control *memkv.Store

	mu     sync.Mutex
	rng    *rand.Rand
	faults etcdFaults
	// cuts are hosts that do not reach the journal, or nothing of it.
	cuts map[string]etcdCut
	// isolated are hosts that reach nothing at all.
	isolated map[string]bool
	// changed is closed and replaced when cuts change.
	changed chan struct{}
	// entries are all entries that the journal ever had, by number.
	entries map[uint64][]byte
	// terms is the newest term of a leader.
	terms uint64
	// unanswered counts changes that took place and whose caller got no answer.
	unanswered atomic.Int64
	digest     *digest
}

// etcdFaults are of all hosts.
type etcdFaults struct {
	// slow is what a way takes longer, at most.
	slow time.Duration
	// loseAnswer is how often something is changed without an answer, late how often an append arrives only after its caller was told that it
	// failed.
	loseAnswer, late float64
}

// etcdCut is how much a host does not reach.
type etcdCut int

const (
	journalCut etcdCut = iota + 1 // the control store is reached
	wholeCut
)

const (
	// etcdLatency bounds how long a way to or from etcd takes.
	etcdLatency = 2 * time.Millisecond
	// etcdSilence is how long a call waits for an etcd that does not answer, if its caller does not say.
	etcdSilence = 10 * time.Second
	// latest is how late an append arrives at most.
	latest = 5 * time.Second
)

var (
	errNoEtcd   = errors.New("etcd does not answer")
	errGoneHost = errors.New("the process is gone")
)

func newEtcd(rng *rand.Rand, d *digest) *etcd {
	return &etcd{digest: d, journal: memjournal.New(), control: memkv.New(), rng: rng, cuts: map[string]etcdCut{}, isolated: map[string]bool{}, changed: make(chan struct{}), entries: map[uint64][]byte{}}
}

// set changes what etcd is like.
func (e *etcd) set(change func(*etcd)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
	close(e.changed)
	e.changed = make(chan struct{})
}

// draw reports whether a fault with a chance happens now.
func (e *etcd) draw(chance func(etcdFaults) float64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := chance(e.faults)
	return p > 0 && e.rng.Float64() < p
}

// drawTime returns a time below most, and what the way takes longer now.
func (e *etcd) drawTime(most time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(e.rng.Int64N(int64(most + e.faults.slow)))
}

// leaderURL returns the URL of the replica that leads, "" if none does.
func (e *etcd) leaderURL() string {
	head, err := e.journal.Open().Head(context.Background())
	if err != nil {
		return ""
	}
	return head.Leader
}

// noteEntry keeps an entry that was appended.
func (e *etcd) noteEntry(next journal.Head, entry []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms = max(e.terms, next.Term)
	if entry != nil {
		e.entries[next.Seq] = bytes.Clone(entry)
	}
}

// replication returns etcd as a life of a process on a host reaches it.
func (e *etcd) replication(host string, g *gate) *app.Replication {
	reach := func(cutBy etcdCut) *etcdReach {
		return &etcdReach{etcd: e, host: host, gate: g, cutBy: cutBy, closed: make(chan struct{})}
	}
	return &app.Replication{
		OpenControl: func() (kv.Store, error) { return &farControl{etcdReach: reach(wholeCut), control: e.control}, nil },
		OpenJournal: func() (journal.Journal, error) {
			return &farJournal{etcdReach: reach(journalCut), journal: e.journal.Open()}, nil
		},
		SnapshotEvery: snapshotEvery,
	}
}

// snapshotEvery is short: runs are.
const snapshotEvery = 15 * time.Second

// etcdReach is the way from a host to a part of etcd.
type etcdReach struct {
	*etcd
	host string
	gate *gate
	// cutBy is the smallest cut that closes the way.
	cutBy  etcdCut
	closed chan struct{}
	ending sync.Once
}

func (r *etcdReach) endCalls() { r.ending.Do(func() { close(r.closed) }) }

// isCut reports whether nothing passes, and returns a channel that is closed when that changes.
func (r *etcdReach) isCut() (cut bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isolated[r.host] || r.cuts[r.host] >= r.cutBy, r.changed
}

// travel is one way to etcd, or back.
func (r *etcdReach) travel(ctx context.Context) error {
	if err := r.pass(ctx); err != nil {
		return err
	}
	r.digest.note(r.host, "etcd")
	way, silence := time.NewTimer(r.drawTime(etcdLatency)), time.NewTimer(etcdSilence)
	defer way.Stop()
	defer silence.Stop()
	select {
	case <-way.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-r.closed:
		return errNoEtcd
	}
	for {
		cut, changed := r.isCut()
		if !cut {
			return r.pass(ctx)
		}
		select {
		case <-changed:
		case <-silence.C:
			return errNoEtcd
		case <-ctx.Done():
			return ctx.Err()
		case <-r.closed:
			return errNoEtcd
		}
	}
}

// pass waits while the process is stopped, and fails if it is gone.
func (r *etcdReach) pass(ctx context.Context) error {
	r.gate.pass()
	if r.gate.gone.Load() {
		return errGoneHost
	}
	return ctx.Err()
}

// returnChange is the way back of an answer to a change.
func (r *etcdReach) returnChange(ctx context.Context, changed bool) error {
	err := r.travel(ctx)
	if err == nil && r.draw(func(f etcdFaults) float64 { return f.loseAnswer }) {
		err = errNoEtcd
	}
	if err != nil && changed {
		r.unanswered.Add(1)
	}
	return err
}

// farJournal is the journal as a process reaches it. It implements journal.Journal.
type farJournal struct {
	*etcdReach
	journal *memjournal.Journal
}

// readFar makes a call that changes nothing.
func readFar[T any](ctx context.Context, r *etcdReach, call func() (T, error)) (answer T, err error) {
	if err := r.travel(ctx); err != nil {
		return answer, err
	}
	result, failed := call()
	if err := r.travel(ctx); err != nil {
		return answer, err
	}
	return result, failed
}

// Head implements journal.Journal.
func (j *farJournal) Head(ctx context.Context) (journal.Head, error) {
	return readFar(ctx, j.etcdReach, func() (journal.Head, error) { return j.journal.Head(ctx) })
}

// Wait implements journal.Journal.
func (j *farJournal) Wait(ctx context.Context, after journal.Head) (journal.Head, error) {
	return readFar(ctx, j.etcdReach, func() (journal.Head, error) { return j.journal.Wait(ctx, after) })
}

// Read implements journal.Journal. Entries never change, so they may be read when the answer is there.
func (j *farJournal) Read(ctx context.Context, from, to uint64, fn func(seq uint64, entry []byte) error) error {
	if _, err := readFar(ctx, j.etcdReach, func() (any, error) { return nil, nil }); err != nil {
		return err
	}
	return j.journal.Read(ctx, from, to, fn)
}

// Swap implements journal.Journal.
func (j *farJournal) Swap(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	if err := j.travel(ctx); err != nil {
		return journal.Head{}, err
	}
	if j.draw(func(f etcdFaults) float64 { return f.late }) {
		kept, late := bytes.Clone(entry), &farJournal{etcdReach: &etcdReach{etcd: j.etcd}, journal: j.etcd.journal.Open()}
		time.AfterFunc(j.drawTime(latest), func() {
			if _, err := late.swapNow(context.Background(), known, next, kept); err == nil {
				j.unanswered.Add(1)
			}
		})
		return journal.Head{}, errNoEtcd
	}
	head, err := j.swapNow(ctx, known, next, entry)
	if lost := j.returnChange(ctx, err == nil); lost != nil {
		return journal.Head{}, lost
	}
	return head, err
}

func (j *farJournal) swapNow(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	head, err := j.journal.Swap(ctx, known, next, entry)
	if err == nil {
		j.noteEntry(next, entry)
	}
	return head, err
}

// Trim implements journal.Journal.
func (j *farJournal) Trim(ctx context.Context, below uint64) error {
	if err := j.travel(ctx); err != nil {
		return err
	}
	err := j.journal.Trim(ctx, below)
	if lost := j.returnChange(ctx, err == nil); lost != nil {
		return lost
	}
	return err
}

// Close implements journal.Journal.
func (j *farJournal) Close() error {
	j.endCalls()
	return j.journal.Close()
}

// farControl is the control store as a process reaches it. It implements kv.Store.
type farControl struct {
	*etcdReach
	control *memkv.Store
}

// Get implements kv.Store.
func (s *farControl) Get(ctx context.Context, key string) (kv.Entry, error) {
	return readFar(ctx, s.etcdReach, func() (kv.Entry, error) { return s.control.Get(ctx, key) })
}

// Range implements kv.Store.
func (s *farControl) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	return readFar(ctx, s.etcdReach, func() (kv.RangePage, error) { return s.control.Range(ctx, r) })
}

// Commit implements kv.Store.
func (s *farControl) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if err := s.travel(ctx); err != nil {
		return 0, err
	}
	revision, err := s.control.Commit(ctx, ops...)
	if lost := s.returnChange(ctx, err == nil); lost != nil {
		return 0, lost
	}
	return revision, err
}

// Watch implements kv.Store.
func (s *farControl) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if err := s.travel(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.closed:
			cancel(kv.ErrClosed)
		case <-ctx.Done():
		}
	}()
	err := s.control.Watch(ctx, prefix, after, func(b kv.EventBatch) error {
		if err := s.travel(ctx); err != nil {
			return err
		}
		return fn(b)
	})
	if errors.Is(context.Cause(ctx), kv.ErrClosed) {
		return kv.ErrClosed
	}
	return err
}

// Close implements kv.Store. What it has remains: it is the cell's.
func (s *farControl) Close() error {
	s.endCalls()
	return nil
}
