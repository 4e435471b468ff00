package metalog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/testclock"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

func TestReplicaAlone(t *testing.T) { runMost(t, replicaEngine(1, inMemoryJournals, joinInProcess)) }

func TestReplicas(t *testing.T) { runSuite(t, replicaEngine(3, inMemoryJournals, joinInProcess)) }

// The same over a journal in etcd: the replica that leads, one that follows it, and both as clients of other processes have them. They wait for the disk most of the time.

func TestEtcdLeader(t *testing.T) { runOverEtcd(t, 1, joinInProcess) }

func TestEtcdReplica(t *testing.T) { runOverEtcd(t, 2, joinInProcess) }

func TestEtcdReplicasRemote(t *testing.T) { runOverEtcd(t, 2, joinRemotely) }

func runOverEtcd(t *testing.T, n int, join joinReplicas) {
	t.Parallel()
	f := replicaEngine(n, etcdJournals(t), join)
	if testsize.Test(false, true, true) {
		runCore(t, f)
		return
	}
	runSuite(t, f)
}

// journalFactory makes a journal, and returns what opens handles of it, and after what silence of a leader a replica takes over.
type journalFactory func(tb testing.TB) (open func() journal.Journal, takeoverAfter time.Duration)

func inMemoryJournals(testing.TB) (func() journal.Journal, time.Duration) {
	store := memjournal.New()
	return func() journal.Journal { return store.Open() }, 100 * time.Millisecond
}

// etcdJournals makes journals in a cluster of one member, which ends with the test.
func etcdJournals(t *testing.T) journalFactory {
	t.Helper()
	client := etcdtest.Start(t, 1).Client(t)
	made := 0
	return func(tb testing.TB) (func() journal.Journal, time.Duration) {
		made++
		prefix := fmt.Sprintf("scribe/test/m/%d/", made)
		return func() journal.Journal {
			j, err := etcdjournal.Open(etcdjournal.Config{Client: client, Prefix: prefix})
			if err != nil {
				tb.Fatal(err)
			}
			return j
		}, 500 * time.Millisecond // on a busy machine a beat takes a while
	}
}

// replicaSet is the replicas of one engine, in one process. Calls that change something go to the one that leads, the others to one that
// follows, if there is one.
type replicaSet struct {
	openJournal   func() journal.Journal
	takeoverAfter time.Duration
	join          joinReplicas
	clock         *testclock.Clock
	folders       []*vfs.MemFS
	journals      []journal.Journal
	engines       []*pebblelog.Engine
	// reader is the index of the replica that reads are made at.
	reader int
}

// joinReplicas makes one log of a set, as it is now.
type joinReplicas func(tb testing.TB, s *replicaSet) metalog.Log

func joinInProcess(_ testing.TB, s *replicaSet) metalog.Log {
	v := &replicaView{set: *s}
	v.Log = v.set.engines[v.set.reader]
	return v
}

// remoteReplicas is a log of replicas that are served over TCP.
type remoteReplicas struct {
	*replicated.Log
	clients []metalog.Log
	set     replicaSet
}

// joinRemotely has the replica that reads are made at first, where the log asks first.
func joinRemotely(tb testing.TB, s *replicaSet) metalog.Log {
	tb.Helper()
	r := &remoteReplicas{set: *s}
	var replicas []replicated.Replica
	for i := range s.engines {
		at := (s.reader + i) % len(s.engines)
		client := remote.NewClient(overTCP(tb, remote.NewServer(s.engines[at])))
		r.clients = append(r.clients, client)
		replicas = append(replicas, replicated.Replica{URL: replicaURL(at), Log: client})
	}
	var err error
	if r.Log, err = replicated.New(replicas, replicated.Options{Patience: caseTimeout}); err != nil {
		tb.Fatal(err)
	}
	return r
}

// Annotations are where they were written, see replicaView.
func (r *remoteReplicas) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) ([]metalog.Annotation, record.LSN, error) {
	notes, until, err := r.Log.Annotations(ctx, shard, from, to, kind, maxBytes)
	for _, c := range r.clients {
		if err != nil || len(notes) > 0 {
			break
		}
		notes, until, err = c.Annotations(ctx, shard, from, to, kind, maxBytes)
	}
	return notes, until, err
}

func (r *remoteReplicas) Close() error {
	errs := []error{r.Log.Close()}
	for _, c := range r.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, r.set.closeAll())...)
}

func replicaURL(i int) string { return fmt.Sprint("http://replica", i) }

// replicaEngine makes sets of n replicas, which journals connect.
func replicaEngine(n int, journals journalFactory, join joinReplicas) logFactory {
	return func(tb testing.TB) *logInstance {
		tb.Helper()
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		s := &replicaSet{join: join, clock: testclock.New()}
		s.openJournal, s.takeoverAfter = journals(tb)
		for range n {
			s.folders = append(s.folders, vfs.NewCrashableMem())
		}
		s.openAll(tb)
		log := join(tb, s)
		again := func(tb testing.TB, between func()) metalog.Log {
			tb.Helper()
			if err := log.Close(); err != nil {
				tb.Errorf("Close: %v", err)
			}
			between()
			s.openAll(tb)
			log = join(tb, s)
			return log
		}
		in := &logInstance{
			log:     log,
			clock:   s.clock,
			lags:    n > 1,
			restart: func(tb testing.TB) metalog.Log { tb.Helper(); return again(tb, func() {}) },
			crash: func(tb testing.TB) metalog.Log {
				tb.Helper()
				var crashed []*vfs.MemFS
				for _, fs := range s.folders {
					crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng}))
				}
				for i, j := range s.journals { // nothing more comes of it, and nobody waits for an answer
					_ = j.Close()
					_ = s.engines[i].Close()
				}
				return again(tb, func() { s.folders = crashed })
			},
			damage: func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log {
				tb.Helper()
				for _, e := range s.engines { // a read waits until the replica has applied what is journaled: what its folder lacks can't be damaged
					if _, err := e.Tail(tb.Context(), []record.ShardID{shard}); err != nil {
						tb.Fatal(err)
					}
				}
				return again(tb, func() {
					for _, fs := range s.folders {
						flipByte(tb, fs, schema.AppendRecordKey(nil, shard, lsn))
					}
				})
			},
		}
		if _, ok := log.(*remoteReplicas); ok {
			in.damage = nil // all replicas would be damaged, and a log looks for one that is not for a while (package replicated)
		}
		return in
	}
}

func (s *replicaSet) openAll(tb testing.TB) {
	tb.Helper()
	s.engines, s.journals = nil, nil
	for i, fs := range s.folders {
		j := s.openJournal()
		e, err := pebblelog.Open("log", pebblelog.Options{
			FS: fs, Clock: s.clock.Now, MemTableBytes: 1 << 20, Journal: j, URL: replicaURL(i), TakeoverAfter: s.takeoverAfter,
		})
		if err != nil {
			tb.Fatal(err)
		}
		s.journals, s.engines = append(s.journals, j), append(s.engines, e)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	for leader := -1; leader < 0; {
		for i, e := range s.engines {
			if leads, err := e.AwaitLeader(ctx); err != nil {
				tb.Fatalf("replica %d knows no leader: %v", i, err)
			} else if leads {
				leader = i
			}
		}
		s.reader = (leader + 1) % len(s.engines)
		runtime.Gosched()
	}
}

func (s *replicaSet) closeAll() error {
	var all sync.WaitGroup
	errs := make([]error, len(s.engines))
	for i, e := range s.engines {
		all.Go(func() { errs[i] = e.Close() })
	}
	all.Wait()
	for _, j := range s.journals {
		errs = append(errs, j.Close())
	}
	return errors.Join(errs...)
}

// replicaView is the log of a set. What it does not redirect is read from the replica that is embedded in it.
type replicaView struct {
	metalog.Log
	set replicaSet
}

// write calls one replica after another until one leads.
func write[T any](ctx context.Context, v *replicaView, call func(e *pebblelog.Engine) (T, error)) (answer T, err error) {
	for {
		for _, e := range v.set.engines {
			if answer, err = call(e); !errors.Is(err, metalog.ErrNotLeader) {
				return answer, err
			}
		}
		select {
		case <-ctx.Done():
			return answer, ctx.Err()
		case <-time.After(time.Millisecond): // those who are elected need the processor
		}
	}
}

func (v *replicaView) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return write(ctx, v, func(e *pebblelog.Engine) ([]metalog.State, error) { return e.Open(ctx, owner, shards) })
}

func (v *replicaView) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return write(ctx, v, func(e *pebblelog.Engine) ([]metalog.Appended, error) { return e.Append(ctx, a) })
}

func (v *replicaView) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := write(ctx, v, func(e *pebblelog.Engine) (any, error) { return nil, e.Trim(ctx, shard, before) })
	return err
}

func (v *replicaView) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	return write(ctx, v, func(e *pebblelog.Engine) (metalog.State, error) { return e.Seal(ctx, shard) })
}

func (v *replicaView) Retire(ctx context.Context, category uint32) error {
	_, err := write(ctx, v, func(e *pebblelog.Engine) (any, error) { return nil, e.Retire(ctx, category) })
	return err
}

func (v *replicaView) Erase(ctx context.Context, category uint32) error {
	_, err := write(ctx, v, func(e *pebblelog.Engine) (any, error) { return nil, e.Erase(ctx, category) })
	return err
}

func (v *replicaView) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	return write(ctx, v, func(e *pebblelog.Engine) (int64, error) { return e.AdvanceBoundary(ctx, t) })
}

func (v *replicaView) Annotate(ctx context.Context, notes []metalog.Annotation) (int, error) {
	return write(ctx, v, func(e *pebblelog.Engine) (int, error) { return e.Annotate(ctx, notes) })
}

// Annotations are where they were written: at the replica that leads, or at one that led before a restart.
func (v *replicaView) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) ([]metalog.Annotation, record.LSN, error) {
	engines := slices.Clone(v.set.engines)
	for i, e := range engines {
		if leads, _ := e.Leading(); leads {
			engines[0], engines[i] = e, engines[0]
		}
	}
	notes, until, err := engines[0].Annotations(ctx, shard, from, to, kind, maxBytes)
	for _, e := range engines[1:] {
		if err != nil || len(notes) > 0 {
			break
		}
		notes, until, err = e.Annotations(ctx, shard, from, to, kind, maxBytes)
	}
	return notes, until, err
}

func (v *replicaView) Close() error { return v.set.closeAll() }
