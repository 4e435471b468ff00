package kv_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// openEtcdkv returns a store that closes with the test, before its client.
func openEtcdkv(t *testing.T, client *clientv3.Client, timeout time.Duration) *etcdkv.Store {
	t.Helper()
	s, err := etcdkv.New(etcdkv.Config{
		Client: client, Prefix: "scribe/fault/kv/", RequestTimeout: timeout, ProgressEvery: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

// faultHistory is what clients did with one key.
type faultHistory struct {
	sync.Mutex
	operations []porcupine.Operation
	// acknowledged are the values of transactions that succeeded, with their revisions.
	acknowledged map[string]uint64
	unknown      int
}

func (h *faultHistory) add(client int, in linearInput, out linearOutput, call, end int64) {
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
// linearizable, and watches, each of one member alone, are told every acknowledged change once, in order.
func TestEtcdkvMembersStop(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	s := openEtcdkv(t, c.Client(t), 2*time.Second)
	begin := mustPut(t, s, "begin", "")
	watched := make(chan []kv.KeyEvent, 3)
	for i := range cap(watched) {
		watching := openEtcdkv(t, c.MemberClient(t, i), 2*time.Second)
		go func() { watched <- watchUntil(t, watching, begin, "end") }()
	}

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
				out, err := linearCall(t, s, fmt.Sprintf("k%d", k), in)
				if err != nil && in.kind == 0 {
					continue
				}
				id := client
				if err != nil {
					id = clients + int(next.Add(1))
				}
				histories[k].add(id, in, out, call, clock.Add(1))
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

	for range cap(watched) {
		wantTold(t, <-watched, histories)
	}
	for k, h := range histories {
		t.Logf("key %d: %d operations, %d of an unknown outcome", k, len(h.operations), h.unknown)
		if result := porcupine.CheckOperationsTimeout(keyModel, h.operations, time.Minute); result != porcupine.Ok {
			t.Errorf("the history of key %d is not linearizable: %v", k, result)
		}
	}
}

// wantTold checks that a watch was told every acknowledged change of the keys once, at its revision.
func wantTold(t *testing.T, told []kv.KeyEvent, histories []*faultHistory) {
	t.Helper()
	events := map[string]uint64{}
	for _, e := range told {
		if events[e.Key+string(e.Value)] != 0 {
			t.Errorf("a watch tells %s=%s twice", e.Key, e.Value)
		}
		events[e.Key+string(e.Value)] = e.Revision
	}
	for k, h := range histories {
		for value, revision := range h.acknowledged {
			if at := events[fmt.Sprintf("k%d", k)+value]; at != revision {
				t.Errorf("%s of revision %d is told at %d", value, revision, at)
			}
		}
	}
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

// TestEtcdkvBase: the base of a store is fixed by who uses it first.
func TestEtcdkvBase(t *testing.T) {
	t.Parallel()
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
	used := openEtcdkv(t, client, time.Minute)
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
