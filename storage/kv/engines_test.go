package kv_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
	"scribe/storage/kv/pebblekv"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

func TestMemkv(t *testing.T) {
	runSuite(t, storeFactory{
		Open:      func(*testing.T) kv.Store { return memkv.New() },
		OpenShort: func(*testing.T) kv.Store { return memkv.NewWithHistory(64) },
	})
}

func TestPebblekv(t *testing.T) {
	files := map[kv.Store]vfs.FS{}
	open := func(t *testing.T, fs vfs.FS, change func(*pebblekv.Config)) kv.Store {
		cfg := pebblekv.DefaultConfig("kv")
		change(&cfg)
		s, err := pebblekv.Open(cfg, pebblekv.Deps{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		files[s] = fs
		return s
	}
	runSuite(t, storeFactory{
		Open: func(t *testing.T) kv.Store { return open(t, vfs.NewMem(), func(*pebblekv.Config) {}) },
		OpenShort: func(t *testing.T) kv.Store {
			return open(t, vfs.NewMem(), func(c *pebblekv.Config) { c.HistoryEvents = 64 })
		},
		Reopen: func(t *testing.T, s kv.Store) kv.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, files[s], func(*pebblekv.Config) {})
		},
	})
}
