package metalog_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/s3test"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/blob/s3"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog"
)

// stepLimit bounds what these tests wait for, in real time.
const stepLimit = 2 * time.Minute

// openSnapshotting opens a replica that makes snapshots all the time.
func openSnapshotting(t *testing.T, j journal.Journal, store blob.Store, url string) *pebblelog.Engine {
	t.Helper()
	e, err := pebblelog.Open("log", pebblelog.Options{
		FS: vfs.NewMem(), Journal: j, Snapshots: store, URL: url, SnapshotEvery: 200 * time.Millisecond, MemTableBytes: 64 << 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// openShard opens a log at a replica once that leads.
func openShard(t *testing.T, e *pebblelog.Engine) metalog.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	if leads, err := e.AwaitLeader(ctx); err != nil || !leads {
		t.Fatalf("it leads: %v, %v", leads, err)
	}
	states, err := e.Open(ctx, "test", []record.ShardID{record.MakeShardID(1, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return states[0]
}

// appendRandom appends a record that does not compress.
func appendRandom(t *testing.T, e *pebblelog.Engine, st metalog.State, size int) error {
	t.Helper()
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32()) //nolint:gosec // any bytes
	}
	_, err := e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: st.Shard, Epoch: st.Epoch, Records: [][]byte{data}}}})
	return err
}

// sameLog requires that two replicas have the same records.
func sameLog(t *testing.T, a, b *pebblelog.Engine, shard record.ShardID) {
	t.Helper()
	read := func(e *pebblelog.Engine) (all []byte) {
		states, err := e.Tail(t.Context(), []record.ShardID{shard})
		if err != nil {
			t.Fatal(err)
		}
		for lsn := states[0].FirstLSN; lsn < states[0].NextLSN; {
			entries, err := e.Read(t.Context(), shard, lsn, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, en := range entries {
				all = append(all, en.Data...)
			}
			lsn += record.LSN(len(entries))
		}
		return all
	}
	if want, got := read(a), read(b); len(want) == 0 || !bytes.Equal(want, got) {
		t.Errorf("the replicas have %d and %d bytes of records, or others", len(want), len(got))
	}
}

// TestSnapshotsInS3: snapshots are made in a real S3 store, the journal is trimmed, and a replica with an empty folder is seeded from there.
func TestSnapshotsInS3(t *testing.T) {
	server := s3test.Start(t)
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Secure, cfg.Region, cfg.Bucket = server.Endpoint, false, server.Region, server.Bucket
	cfg.AccessKey, cfg.SecretKey, cfg.Prefix = server.AccessKey, server.SecretKey, "cells/1"
	store, err := s3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	entries := memjournal.New()
	first := openSnapshotting(t, entries.Open(), store, "http://a")
	st := openShard(t, first)
	isTrimmed := func() bool {
		err := entries.Open().Read(t.Context(), 1, 1, func(uint64, []byte) error { return nil })
		return errors.Is(err, journal.ErrTrimmed)
	}
	for began := time.Now(); !isTrimmed(); {
		if err := appendRandom(t, first, st, 10_000); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > stepLimit {
			t.Fatal("the journal is not trimmed")
		}
	}
	second := openSnapshotting(t, entries.Open(), store, "http://b")
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	if _, err := second.AwaitLeader(ctx); err != nil {
		t.Fatal(err)
	}
	sameLog(t, first, second, st.Shard)
}

// awayBlobs is a store that takes nothing while it is away.
type awayBlobs struct {
	blob.Store
	away atomic.Bool
}

func (s *awayBlobs) Put(ctx context.Context, key string, data ...[]byte) error {
	if s.away.Load() {
		return blob.ErrUnavailable
	}
	return s.Store.Put(ctx, key, data...)
}

// TestSnapshotStoreAwayForLong: while snapshots can't be stored, etcd grows up to the documented size, far below its quota; then appends are
// refused with a hint, and go on when the store is back.
func TestSnapshotStoreAwayForLong(t *testing.T) {
	const fullBytes = 4 << 20
	cluster := etcdtest.Start(t, 1)
	client := cluster.Client(t)
	j, err := etcdjournal.Open(etcdjournal.Config{
		Client: client, Prefix: "test/", FullBytes: fullBytes, UpkeepEvery: 50 * time.Millisecond, KeepHistory: 200 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	store := &awayBlobs{Store: memory.New()}
	store.away.Store(true)
	e := openSnapshotting(t, j, store, "http://a")
	st := openShard(t, e)
	appended := 0
	for err = nil; err == nil; appended++ {
		if appended > 1000 {
			t.Fatal("the journal is never full")
		}
		err = appendRandom(t, e, st, 50_000)
	}
	if !errors.Is(err, journal.ErrFull) || !strings.Contains(err.Error(), "the limit is 4 MiB") || !strings.Contains(err.Error(), "blob store") {
		t.Fatalf("an append to a full journal: %v", err)
	}
	status, err := client.Status(t.Context(), client.Endpoints()[0])
	if err != nil || status.DbSizeInUse > 4*fullBytes || len(status.Errors) > 0 {
		t.Errorf("etcd has %d bytes in use, %v, %v", status.DbSizeInUse, status.Errors, err)
	}
	if err := e.Err(); err != nil {
		t.Error(err)
	}
	store.away.Store(false)
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for began := time.Now(); ; <-ticks.C {
		err := appendRandom(t, e, st, 50_000)
		if err == nil {
			break
		}
		away := errors.Is(err, journal.ErrFull) || errors.Is(err, metalog.ErrNotLeader) // a busy machine may let the lead slip
		if !away || time.Since(began) > stepLimit {
			t.Fatalf("an append after the store is back: %v", err)
		}
	}
	if tail, err := e.Tail(t.Context(), []record.ShardID{st.Shard}); err != nil || int(tail[0].NextLSN-tail[0].FirstLSN) != appended {
		t.Errorf("%+v, %v, want %d records", tail, err, appended)
	}
}
