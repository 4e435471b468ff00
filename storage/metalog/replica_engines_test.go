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
	"scribe/internal/testkit/testclock"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/pebblelog/schema"
)

func TestReplicaAlone(t *testing.T) { runMost(t, replicaEngine(1)) }

func TestReplicas(t *testing.T) { runSuite(t, replicaEngine(3)) }

// replicaSet is the replicas of one engine, in one process. Calls that change something go to the one that leads, the others to one that
// follows, if there is one.
type replicaSet struct {
	store    *memjournal.Store
	clock    *testclock.Clock
	folders  []*vfs.MemFS
	journals []*memjournal.Journal
	engines  []*pebblelog.Engine
	// reader is the index of the replica that reads are made at.
	reader int
}

// replicaEngine makes sets of n replicas.
func replicaEngine(n int) logFactory {
	return func(tb testing.TB) *logInstance {
		tb.Helper()
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		s := &replicaSet{store: memjournal.New(), clock: testclock.New()}
		for range n {
			s.folders = append(s.folders, vfs.NewCrashableMem())
		}
		s.openAll(tb)
		again := func(tb testing.TB, between func()) metalog.Log {
			tb.Helper()
			if err := s.closeAll(); err != nil {
				tb.Errorf("Close: %v", err)
			}
			between()
			s.openAll(tb)
			return s.view()
		}
		return &logInstance{
			log:     s.view(),
			clock:   s.clock,
			lags:    n > 1,
			restart: func(tb testing.TB) metalog.Log { tb.Helper(); return again(tb, func() {}) },
			crash: func(tb testing.TB) metalog.Log {
				tb.Helper()
				var crashed []*vfs.MemFS
				for _, fs := range s.folders {
					crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng}))
				}
				for _, j := range s.journals { // nothing more comes of it
					_ = j.Close()
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
	}
}

// view returns a log of the set as it is now.
func (s *replicaSet) view() metalog.Log {
	v := &replicaView{set: *s}
	v.Log = v.set.engines[v.set.reader]
	return v
}

func (s *replicaSet) openAll(tb testing.TB) {
	tb.Helper()
	s.engines, s.journals = nil, nil
	for i, fs := range s.folders {
		j := s.store.Open()
		e, err := pebblelog.Open("log", pebblelog.Options{
			FS: fs, Clock: s.clock.Now, MemTableBytes: 1 << 20, Journal: j, URL: fmt.Sprint("replica", i), TakeoverAfter: 100 * time.Millisecond,
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
		default:
			runtime.Gosched()
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

func (v *replicaView) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	return write(ctx, v, func(e *pebblelog.Engine) (int, error) { return e.Remove(ctx, shards) })
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
