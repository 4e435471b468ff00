package kv_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
)

func newEtcdkv(t *testing.T, client *clientv3.Client, timeout time.Duration) *etcdkv.Store {
	t.Helper()
	s, err := etcdkv.New(etcdkv.Config{
		Client: client, Prefix: "scribe/fault/kv/", RequestTimeout: timeout, ProgressEvery: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// faultOutput is a linearOutput, or that nobody knows.
type faultOutput struct {
	linearOutput

	unknown bool
}

// anyRevision is the revision of a state that a transaction with an unknown outcome left.
const anyRevision = math.MaxUint64

// faultModel is keyModel with transactions that may have been applied. Each puts a value of its own.
var faultModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, in, out any) []any {
		s, i, o := state.(keyState), in.(linearInput), out.(faultOutput)
		holds := s.revision == i.expect || s.revision == anyRevision && i.expect != 0
		switch {
		case o.unknown && holds:
			return []any{s, keyState{i.value, anyRevision}}
		case o.unknown:
			return []any{s}
		case i.kind == 0 && s.value == o.value && (s.revision == o.revision || s.revision == anyRevision && o.revision != 0):
			return []any{keyState{o.value, o.revision}}
		case o.conflict && (s.revision != i.expect):
			return []any{s}
		case i.kind == kv.OpPut && !o.conflict && holds && (s.revision == anyRevision || o.revision > s.revision):
			return []any{keyState{i.value, o.revision}}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a.(keyState) == b.(keyState) },
}).ToModel()

// faultHistory is what clients did with one key.
type faultHistory struct {
	sync.Mutex
	operations []porcupine.Operation
	// acknowledged are the values of transactions that succeeded, with their revisions.
	acknowledged map[string]uint64
	unknown      int
}

func (h *faultHistory) add(client int, in linearInput, out faultOutput, call, end int64) {
	h.Lock()
	defer h.Unlock()
	if out.unknown {
		h.unknown++
		end = math.MaxInt64
	}
	if in.kind == kv.OpPut && !out.conflict && !out.unknown {
		h.acknowledged[in.value] = out.revision
	}
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: end})
}

// TestEtcdkvMembersStop stops the leader of three members, and starts it again, several times while clients write. The history of each key is
// linearizable, and a watch is told every acknowledged change once, in order.
func TestEtcdkvMembersStop(t *testing.T) {
	c := etcdtest.Start(t, 3)
	s := newEtcdkv(t, c.Client(t), 2*time.Second)
	defer closeStore(t, s)
	begin := mustPut(t, s, "begin", "")
	watched := make(chan []kv.KeyEvent, 1)
	go func() { watched <- watchUntil(t, s, begin, "end") }()

	const keys, clients, stops, each = 6, 5, 3, 80
	histories := make([]*faultHistory, keys)
	for k := range histories {
		histories[k] = &faultHistory{acknowledged: map[string]uint64{}}
	}
	var clock, done atomic.Int64
	progress := make(chan struct{}, 1) // has a value when something was done since
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for client := range clients {
		wg.Go(func() {
			known := make([]uint64, keys)
			for i := 0; ctx.Err() == nil; i++ {
				k := (i/2 + client) % keys // read, then written
				in := linearInput{kind: kv.OpKind(i % 2), value: fmt.Sprintf("%d.%d", client, i), expect: known[k]}
				// A client that never knows an outcome gets another number: an operation without an end overlaps with its later ones.
				call := clock.Add(1)
				out, err := linearCallOn(t, s, fmt.Sprintf("k%d", k), in)
				if err != nil && in.kind == 0 {
					continue
				}
				id := client
				if err != nil {
					id = clients + int(next.Add(1))
				}
				histories[k].add(id, in, faultOutput{out, err != nil}, call, clock.Add(1))
				if err == nil {
					if known[k] = out.revision; out.conflict {
						known[k] = in.expect
					}
					done.Add(1)
					select {
					case progress <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	await := func(n int64) {
		for target := done.Load() + n; done.Load() < target; {
			<-progress
		}
	}
	for range stops {
		await(each)
		i := c.Leader()
		c.Stop(i)
		await(each)
		c.Restart(i)
		c.Await(i)
	}
	await(each)
	cancel()
	wg.Wait()
	mustPut(t, s, "end", "")

	events := map[string]uint64{}
	for _, e := range <-watched {
		if events[e.Key+string(e.Value)] != 0 {
			t.Errorf("a watch tells %s=%s twice", e.Key, e.Value)
		}
		events[e.Key+string(e.Value)] = e.Revision
	}
	for k, h := range histories {
		t.Logf("key %d: %d operations, %d of an unknown outcome", k, len(h.operations), h.unknown)
		for value, revision := range h.acknowledged {
			if events[fmt.Sprintf("k%d", k)+value] != revision {
				t.Errorf("%s of revision %d is told at %d", value, revision, events[fmt.Sprintf("k%d", k)+value])
			}
		}
		if result := porcupine.CheckOperationsTimeout(faultModel, h.operations, time.Minute); result != porcupine.Ok {
			t.Errorf("the history of key %d is not linearizable: %v", k, result)
		}
	}
}

// linearCallOn is linearCall with a key, whose errors are unknown outcomes.
func linearCallOn(t *testing.T, s kv.Store, key string, in linearInput) (linearOutput, error) {
	if in.kind == 0 {
		e, err := s.Get(t.Context(), key)
		if errors.Is(err, kv.ErrNotFound) {
			err = nil
		}
		return linearOutput{value: string(e.Value), revision: e.Revision}, err
	}
	revision, err := s.Commit(t.Context(), kv.Put(key, []byte(in.value)).If(in.expect))
	if errors.Is(err, kv.ErrConflict) {
		return linearOutput{conflict: true}, nil
	}
	return linearOutput{revision: revision}, err
}

// watchUntil returns all events after a revision until one of a key. It checks their order.
func watchUntil(t *testing.T, s kv.Store, after uint64, key string) (events []kv.KeyEvent) {
	err := s.Watch(t.Context(), "", after, func(b kv.EventBatch) error {
		for _, e := range b.Events {
			if e.Revision <= after || e.Revision > b.Revision {
				t.Errorf("revision %d after %d in a batch of %d", e.Revision, after, b.Revision)
			}
		}
		after = b.Revision
		events = append(events, b.Events...)
		if slices.ContainsFunc(b.Events, func(e kv.KeyEvent) bool { return e.Key == key }) {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Errorf("Watch: %v", err)
	}
	return events
}

// TestEtcdkvQuorumLost: without a majority calls end, with an error that is not definite, and a watch waits.
func TestEtcdkvQuorumLost(t *testing.T) {
	c := etcdtest.Start(t, 3)
	s := newEtcdkv(t, c.Client(t), 500*time.Millisecond)
	defer closeStore(t, s)
	var begin uint64
	for begin == 0 { // the time limit is short for a machine that has other things to do
		begin, _ = s.Commit(t.Context(), kv.Put("begin", nil))
	}
	watched := make(chan []kv.KeyEvent, 1)
	go func() { watched <- watchUntil(t, s, begin, "end") }()
	c.Stop(0)
	c.Stop(1)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, cerr := s.Commit(t.Context(), kv.Put("a", []byte("1")))
	_, gerr := s.Get(t.Context(), "a")
	_, rerr := s.Range(t.Context(), kv.KeyRange{})
	for _, err := range []error{cerr, gerr, rerr} {
		for _, definite := range []error{nil, kv.ErrNotFound, kv.ErrConflict, kv.ErrCompacted, kv.ErrInvalid, kv.ErrCorrupt, kv.ErrClosed, etcdkv.ErrWentBack} {
			if errors.Is(err, definite) {
				t.Errorf("without a majority: %v", err)
			}
		}
	}
	if _, err := s.Get(ended, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v after the context ended", err)
	}
	c.Restart(0)
	c.Restart(1)
	c.Await(0)
	c.Await(1)
	for {
		if _, err := s.Commit(t.Context(), kv.Put("end", nil)); err == nil {
			break
		}
	}
	<-watched
}

// TestEtcdkvWentBack brings an earlier state of etcd back under a running store and its watch.
func TestEtcdkvWentBack(t *testing.T) {
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	s := newEtcdkv(t, client, time.Minute)
	defer closeStore(t, s)
	mustPut(t, s, "a", "1")
	folder, backup := c.Config(0).Folder, t.TempDir()
	c.Stop(0)
	if err := os.CopyFS(backup, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	c.Restart(0)
	c.Await(0)
	last := mustPut(t, s, "a", "2")
	told := make(chan struct{})
	watched := make(chan error, 1)
	go func() {
		watched <- s.Watch(t.Context(), "", last-1, func(kv.EventBatch) error { close(told); return nil })
	}()
	<-told
	c.Stop(0)
	if err := errors.Join(os.RemoveAll(folder), os.CopyFS(folder, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	c.Restart(0)
	c.Await(0)

	// The watch notices by itself, and nothing is answered from then on.
	if err := <-watched; !errors.Is(err, etcdkv.ErrWentBack) && !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("the watch ends with %v", err)
	}
	for range 2 {
		if _, err := s.Get(t.Context(), "a"); !errors.Is(err, etcdkv.ErrWentBack) {
			t.Errorf("Get: %v", err)
		}
	}
	if _, err := s.Commit(t.Context(), kv.Put("a", nil)); !errors.Is(err, etcdkv.ErrWentBack) {
		t.Errorf("Commit: %v", err)
	}
	again := newEtcdkv(t, client, time.Minute)
	defer closeStore(t, again)
	if err := again.Watch(t.Context(), "", last, func(kv.EventBatch) error { return nil }); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watch of another process from what is lost: %v", err)
	}
}

// TestEtcdkvBase: the base of a store is fixed by who uses it first.
func TestEtcdkvBase(t *testing.T) {
	client := etcdtest.Start(t, 1).Client(t)
	cfg := etcdkv.Config{Client: client, Prefix: "scribe/moved/kv/"}
	for range 2 {
		if err := etcdkv.CreateBase(t.Context(), cfg, 1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := etcdkv.CreateBase(t.Context(), cfg, 1001); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("another base: %v", err)
	}
	moved, err := etcdkv.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, moved)
	if r := mustPut(t, moved, "a", "1"); r <= 1000 {
		t.Errorf("revision %d is not above the base", r)
	}
	used := newEtcdkv(t, client, time.Minute)
	defer closeStore(t, used)
	mustPut(t, used, "a", "1")
	if err := etcdkv.CreateBase(t.Context(), etcdkv.Config{Client: client, Prefix: "scribe/fault/kv/"}, 1000); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("a base of a store in use: %v", err)
	}
	if _, err := client.Delete(t.Context(), "scribe/fault/kvbase"); err != nil {
		t.Fatal(err)
	}
	if err := etcdkv.CreateBase(t.Context(), etcdkv.Config{Client: client, Prefix: "scribe/fault/kv/"}, 1000); !errors.Is(err, kv.ErrInvalid) {
		t.Errorf("a base of a store with entries: %v", err)
	}
}
