package journal_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/transport/certificates/certtest"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
)

// TestEtcdUpkeepOfUsers: a user whom etcd does not let compact sweeps parts as others do, says once that it can't compact, and complains while nobody does. Once it may, it
// compacts.
func TestEtcdUpkeepOfUsers(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t, "etcd", time.Now())
	cert, key := ca.Server("etcd")
	foreign := etcdtest.StartForeign(t, ca.File, cert, key, "test")
	root := foreign.Client(etcdtest.Root)
	const prefix = "scribe/test/m/users/"
	var log lockedBuffer
	j, err := etcdjournal.Open(etcdjournal.Config{
		Client: foreign.Client(etcdtest.Limited), Prefix: prefix, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		UpkeepEvery: 20 * time.Millisecond, KeepHistory: time.Millisecond, OthersCompact: 60 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	ctx := t.Context()
	var known journal.Head
	beatUntil := func(what string, so func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !so(); {
			beat := known
			beat.Term, beat.Beat = 1, known.Beat+1
			if known, err = j.Swap(ctx, known, beat, nil); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: %s\n%s", what, log.text())
			}
		}
	}
	orphan := fmt.Sprintf("%sp/%016x/%s/0000", prefix, 0, strings.Repeat("ab", 16))
	if _, err := root.Put(ctx, orphan, "of a try that failed"); err != nil {
		t.Fatal(err)
	}
	beatUntil("parts are swept", func() bool { return !isPresent(t, root, orphan) })
	beatUntil("it complains", func() bool { return j.Neglected() != nil })
	if err := j.Neglected(); !strings.Contains(err.Error(), "--auto-compaction-retention") {
		t.Errorf("%v does not say what to do", err)
	}
	first := known.Revision
	if isCompacted(t, root, int64(first)) {
		t.Fatal("a user with rights on keys alone has compacted")
	}
	if _, err := root.Compact(ctx, int64(first)); err != nil {
		t.Fatal(err)
	}
	beatUntil("somebody else compacts", func() bool { return j.Neglected() == nil })
	beatUntil("it complains again", func() bool { return j.Neglected() != nil })
	if _, err := root.UserGrantRole(ctx, etcdtest.Limited, "root"); err != nil {
		t.Fatal(err)
	}
	next := int64(known.Revision)
	beatUntil("it may compact", func() bool { return isCompacted(t, root, next) && j.Neglected() == nil })
	for _, line := range []string{"does not let this process compact", "compact its history again"} {
		if n := strings.Count(log.text(), line); n != 1 {
			t.Errorf("%q is logged %d times, want once:\n%s", line, n, log.text())
		}
	}
}

// lockedBuffer is what a logger wrote.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
