package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
)

// TestEtcdLeaderStops: contenders with short time limits depose each other while etcd's leader stops and comes back, and entries are
// trimmed right behind a follower. No acknowledged entry is lost, and none is there twice.
func TestEtcdLeaderStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it stops members of etcd, whose elections take seconds")
	}
	t.Parallel()
	c := etcdtest.Start(t, 3)
	s := openEtcd(t, c.Client(t))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var h history
	follower := s.Open()
	stopFollower, followed := make(chan struct{}), make(chan error, 1)
	go func() { followed <- h.follow(ctx, follower, stopFollower) }()

	running, stop := context.WithCancel(ctx)
	var contenders sync.WaitGroup
	for i := range 2 {
		j := s.Open()
		contenders.Go(func() {
			defer j.Close()
			err := h.runContender(running, j, i, 1<<30)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("contender %d: %v", i, err)
			}
		})
	}
	for round := range 2 {
		h.waitFor(ctx, t, 100*(round+1))
		at := c.Leader()
		c.Stop(at)
		h.waitFor(ctx, t, h.acknowledged()+50)
		c.Restart(at)
		c.Await(at)
	}
	stop()
	contenders.Wait()
	close(stopFollower)
	last := s.Open()
	err := h.runContender(ctx, last, 3, 1)
	err = errors.Join(err, <-followed, h.check(), last.Close(), follower.Close())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d acknowledged, %d refused, %d unknown, %d terms", len(h.mu.acked), len(h.mu.failed), h.mu.unknown, h.mu.takeovers)
}

func (h *history) acknowledged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.acked)
}

// waitFor waits until so many entries are acknowledged.
func (h *history) waitFor(ctx context.Context, t *testing.T, count int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for h.acknowledged() < count {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%d acknowledged, want %d", h.acknowledged(), count)
		}
	}
}

// TestEtcdUpkeep: parts of failed tries are removed and those of entries are not, history is compacted, and a small limit makes the
// journal full.
func TestEtcdUpkeep(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	const prefix = "scribe/test/m/upkeep/"
	j, err := etcdjournal.Open(etcdjournal.Config{Client: client, Prefix: prefix, FullBytes: 1, UpkeepEvery: 5 * time.Millisecond, KeepHistory: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx := t.Context()
	known, err := j.Swap(ctx, journal.Head{}, journal.Head{Term: 1, Seq: 1}, make([]byte, 3<<20))
	if err != nil {
		t.Fatal(err)
	}
	orphan := fmt.Sprintf("%sp/%016x/%s/0000", prefix, 1, strings.Repeat("ab", 16))
	future := fmt.Sprintf("%sp/%016x/%s/0000", prefix, 2, strings.Repeat("ab", 16))
	for _, key := range []string{orphan, future} {
		if _, err := client.Put(ctx, key, "of a try that failed"); err != nil {
			t.Fatal(err)
		}
	}
	first := known.Revision
	for isPresent(t, client, orphan) || !isCompacted(t, client, int64(first)) {
		beat := known
		beat.Beat++
		if known, err = j.Swap(ctx, known, beat, nil); err != nil {
			t.Fatal(err)
		}
	}
	if !isPresent(t, client, future) {
		t.Error("a part of an entry that may still be appended was removed")
	}
	if err := j.Read(ctx, 1, 1, func(_ uint64, b []byte) error {
		if len(b) != 3<<20 {
			t.Errorf("%d bytes", len(b))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if _, err := appendNext(ctx, j, known, "refused"); !errors.Is(err, journal.ErrFull) {
		t.Errorf("an append beyond the limit: %v", err)
	}
}

func isPresent(t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	resp, err := client.Get(t.Context(), key, clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return resp.Count > 0
}

// isCompacted reports whether a revision can't be read any more.
func isCompacted(t *testing.T, client *clientv3.Client, revision int64) bool {
	t.Helper()
	_, err := client.Get(t.Context(), "any", clientv3.WithRev(revision))
	return err != nil
}
