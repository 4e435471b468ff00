package faults

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog"
)

// closingPause is how long a flush goes on after closing has begun: as good as always closing waits for Pebble then, which the test can't see.
const closingPause = 200 * time.Millisecond

// The disk is full when the last flush of an engine that closes comes to the manifest. Pebble would end the process. Closing fails, and the
// process goes on.
func TestManifestFailsWhileClosing(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { closeWithoutManifest(t, pebblelog.Options{}) })
	t.Run("replica", func(t *testing.T) {
		closeWithoutManifest(t, pebblelog.Options{Journal: memjournal.New().Open(), URL: "http://only"})
	})
}

func closeWithoutManifest(t *testing.T, opts pebblelog.Options) {
	t.Helper()
	var noTables, noManifest atomic.Bool
	reached, closing := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case op.Kind != errorfs.OpFileWrite:
		case strings.Contains(op.Path, ".sst") && noTables.Load():
			return syscall.ENOSPC
		case strings.Contains(op.Path, "MANIFEST") && noManifest.Load():
			once.Do(func() { close(reached) })
			<-closing
			<-time.After(closingPause)
			return syscall.ENOSPC
		}
		return nil
	}))
	opts.FS, opts.MemTableBytes = fs, 64<<10
	e, err := pebblelog.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	if opts.Journal != nil {
		if _, err := e.AwaitLeader(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	states, err := e.Open(t.Context(), "test", []record.ShardID{shard})
	if err != nil {
		t.Fatal(err)
	}
	noTables.Store(true)
	data := []byte(strings.Repeat("x", 5000))
	// A replica is written to until a flush has failed: then it writes nothing before closing. The other one would block for its memory tables.
	for n := 0; err == nil && (opts.Journal != nil || n < 30); n++ {
		_, err = e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: states[0].Epoch, Records: [][]byte{data}}}})
	}
	noManifest.Store(true)
	noTables.Store(false)
	<-reached
	closed := make(chan error, 1)
	go func() { closed <- e.Close() }()
	for err = nil; !errors.Is(err, metalog.ErrClosed); {
		_, err = e.Tail(t.Context(), []record.ShardID{shard})
	}
	close(closing)
	if err := <-closed; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Close returned %v", err)
	}
}
