package etcdkv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
)

// chain is what writers did to a list in a store: the key "head" has the id of the newest link, "link/ID" the id of the one before.
type chain struct {
	mu struct {
		sync.Mutex
		acked   map[string]uint64 // by id: the revision
		refused []string
		unknown int
	}
}

func newChain() *chain {
	c := &chain{}
	c.mu.acked = map[string]uint64{}
	return c
}

// addLink tries to append a link. An id is tried once only.
func (c *chain) addLink(ctx context.Context, s kv.Store, id string) error {
	head, err := s.Get(ctx, "head")
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return err
	}
	revision, err := s.Commit(ctx, kv.Put("head", []byte(id)).If(head.Revision), kv.Put("link/"+id, head.Value).If(0))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.mu.acked[id] = revision
	case errors.Is(err, kv.ErrConflict):
		c.mu.refused = append(c.mu.refused, id)
	default:
		c.mu.unknown++
	}
	return err
}

func (c *chain) countAcked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.acked)
}

// awaitAcked waits until n more links are acknowledged.
func (c *chain) awaitAcked(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for want := c.countAcked() + n; c.countAcked() < want; {
		if backoff.Sleep(ctx, 5*time.Millisecond) != nil {
			t.Fatalf("%d acknowledged, want %d", c.countAcked(), want)
		}
	}
}

// readChain returns the ids from the first on.
func readChain(t *testing.T, s kv.Store) []string {
	t.Helper()
	var ids []string
	head, err := s.Get(t.Context(), "head")
	for id := string(head.Value); err == nil && id != ""; {
		ids = append(ids, id)
		var link kv.Entry
		link, err = s.Get(t.Context(), "link/"+id)
		id = string(link.Value)
	}
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(ids)
	return ids
}

// check compares what writers were told with the list.
func (c *chain) check(t *testing.T, ids []string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d links: %d acknowledged, %d refused, %d unknown", len(ids), len(c.mu.acked), len(c.mu.refused), c.mu.unknown)
	at := map[string]int{}
	var last uint64
	for i, id := range ids {
		if _, ok := at[id]; ok {
			t.Errorf("%s is there twice", id)
		}
		at[id] = i + 1
		if revision, ok := c.mu.acked[id]; ok {
			if revision <= last {
				t.Errorf("%s was acknowledged with revision %d, after %d", id, revision, last)
			}
			last = revision
		}
	}
	for id := range c.mu.acked {
		if at[id] == 0 {
			t.Errorf("%s was acknowledged, and is lost", id)
		}
	}
	for _, id := range c.mu.refused {
		if at[id] != 0 {
			t.Errorf("%s was refused, and is there", id)
		}
	}
	if more := len(ids) - len(c.mu.acked); more > c.mu.unknown {
		t.Errorf("%d links were not acknowledged, %d have an unknown outcome", more, c.mu.unknown)
	}
}

// watchChain follows the head until the link "end", and sends the ids.
func watchChain(ctx context.Context, s kv.Store, told chan<- []string) error {
	var ids []string
	err := s.Watch(ctx, "head", 0, func(b kv.EventBatch) error {
		for _, e := range b.Events {
			ids = append(ids, string(e.Value))
		}
		if ids[len(ids)-1] == "end" {
			return errEnough
		}
		return nil
	})
	told <- ids
	if !errors.Is(err, errEnough) {
		return fmt.Errorf("after %d links: %w", len(ids), err)
	}
	return nil
}

var errEnough = errors.New("enough")

// TestMembersStop: each member stops and starts while writers append to a list. Nothing that was acknowledged is lost, nothing that was
// refused is there, and watches, each of one member alone, tell every link once.
func TestMembersStop(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	c := etcdtest.Start(t, 3)
	history := newChain()
	told := make(chan []string, 3)
	var watchers, writers sync.WaitGroup
	for i := range 3 {
		s := openStore(t, etcdkv.Config{Client: c.MemberClient(t, i)})
		watchers.Go(func() {
			if err := watchChain(t.Context(), s, told); err != nil {
				t.Errorf("watch of member %d: %v", i, err)
			}
		})
	}
	running, stop := context.WithCancel(t.Context())
	for w := range 3 {
		s := openStore(t, etcdkv.Config{Client: c.Client(t), RequestTimeout: 2 * time.Second})
		writers.Go(func() {
			for i := 0; running.Err() == nil; i++ {
				_ = history.addLink(running, s, fmt.Sprintf("%d.%d", w, i))
			}
		})
	}
	first := c.Leader()
	for i := range 3 {
		history.awaitAcked(t, 50)
		at := (first + i) % 3
		c.Stop(at)
		history.awaitAcked(t, 50)
		c.Restart(at)
		c.Await(at)
	}
	history.awaitAcked(t, 50)
	stop()
	writers.Wait()
	s := openStore(t, etcdkv.Config{Client: c.Client(t)})
	if err := history.addLink(t.Context(), s, "end"); err != nil {
		t.Fatal(err)
	}
	ids := readChain(t, s)
	history.check(t, ids)
	for range 3 {
		if got := receive(t, told); !slices.Equal(got, ids) {
			t.Errorf("a watch told %d links, want %d:\n%s", len(got), len(ids), strings.Join(got, " "))
		}
	}
	watchers.Wait()
}
