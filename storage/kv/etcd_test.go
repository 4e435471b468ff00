package kv_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
)

// etcdBase is the base of revisions in the suite, as of stores that were moved.
const etcdBase = 1 << 40

// TestEtcdkv runs the suite over one cluster of one member, each store behind a prefix of its own.
func TestEtcdkv(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	compacted := etcdtest.Start(t, 1).Client(t)
	var stores atomic.Int64
	newPrefix := func() string { return fmt.Sprintf("scribe/test%d/kv/", stores.Add(1)) }
	prefixes := map[kv.Store]string{}
	open := func(t *testing.T, client *clientv3.Client, prefix string, events int) *etcdkv.Store {
		cfg := etcdkv.Config{Client: client, Prefix: prefix, HistoryEvents: events}
		if err := etcdkv.CreateBase(t.Context(), cfg, etcdBase); err != nil {
			t.Fatal(err)
		}
		s, err := etcdkv.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		prefixes[s] = prefix
		return s
	}
	runSuite(t, storeFactory{
		Open: func(t *testing.T) kv.Store { return open(t, client, newPrefix(), 0) },
		OpenShort: func(t *testing.T) kv.Store {
			return &shortHistory{open(t, compacted, newPrefix(), 64), compacted}
		},
		Reopen: func(t *testing.T, s kv.Store) kv.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, client, prefixes[s], 0)
		},
	})
}

// shortHistory is a store in an etcd that keeps 64 changes.
type shortHistory struct {
	*etcdkv.Store

	client *clientv3.Client
}

// Commit implements kv.Store.
func (s *shortHistory) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	revision, err := s.Store.Commit(ctx, ops...)
	if err == nil && revision > etcdBase+64 {
		_, err = s.client.Compact(ctx, int64(revision-etcdBase-64)) //nolint:gosec // small
	}
	return revision, err
}
