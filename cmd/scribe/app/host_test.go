package app

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/pointer"
	"scribe/internal/testkit/loopback"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

// A data folder survives a loss of power right after its creation, with all folders above it.
func TestDataFolderOutlivesPowerLoss(t *testing.T) {
	fs := vfs.NewCrashableMem()
	release, err := lockData(fs, "/new/data")
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CrashClone(vfs.CrashCloneCfg{}).Stat("/new/data"); err != nil {
		t.Errorf("after a loss of power: %v", err)
	}
}

// A control plane that can't write any more is of no use: its process ends, so that it is started again.
func TestFailedControlStoreEndsTheProcess(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, ".log") {
			return errorfs.ErrInjected
		}
		return nil
	}))
	c := DefaultConfig()
	c.Roles, c.Data, c.Listen = RoleList{ControlPlane}, "/data", "127.0.0.1:0"
	a, err := Start(t.Context(), c, Options{Logger: slog.New(slog.DiscardHandler), Version: "test", Host: Host{FS: fs}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		broken.Store(false)
		_ = a.Stop(t.Context()) // reports the failure again
	}()
	broken.Store(true)
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	_, err = rpc.NewControlClient(transport, a.URL()).CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}})
	if err == nil {
		t.Error("a category was created on a disk that fails")
	}
	if err := <-a.Failed(); !strings.Contains(err.Error(), "control plane") {
		t.Errorf("the process failed with %v", err)
	}
}

// What a process stores has the times of its host's wall clock.
func TestHostClock(t *testing.T) {
	const behind = 1000 * time.Hour
	store := memory.New()
	c := DefaultConfig()
	c.Data, c.Listen, c.Blobs.Path = "/data", "127.0.0.1:0", "/blobs"
	a := startCellOn(t, c, Host{
		FS:        vfs.NewMem(),
		OpenBlobs: func(context.Context, Config) (blob.Store, error) { return store, nil },
		Now:       func() time.Time { return time.Now().Add(-behind) },
	})
	defer stopCell(t, a)
	fill(t, a)
	check := func(what string, micros int64) {
		t.Helper()
		if off := time.Since(time.UnixMicro(micros)) - behind; off.Abs() > time.Hour {
			t.Errorf("%s: the time is %v", what, time.UnixMicro(micros))
		}
	}
	got, err := rpc.NewControlClient(rpc.Default(), a.URL()).GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	check("a category", got.GetCategory().GetCreatedAt())
	states, err := a.parts.log.Shards(t.Context(), got.GetCategory().GetId())
	if err != nil || len(states) == 0 {
		t.Fatal(states, err)
	}
	check("a record", states[0].LastTime)
	blobs := 0
	for info, err := range store.List(t.Context(), pointer.KeyRoot) {
		if err != nil {
			t.Fatal(err)
		}
		_, id, err := pointer.ParseKey(info.Key)
		if err != nil {
			t.Fatal(err)
		}
		check("a blob", id.Time())
		blobs++
	}
	if blobs == 0 {
		t.Error("there are no blobs")
	}
}

// A node keeps its metadata in what its host gives it for an etcd, and begins none itself.
func TestHostReplication(t *testing.T) {
	entries, control := memjournal.New(), memkv.New()
	address, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	c := DefaultConfig()
	c.Data, c.Node, c.Cluster, c.Blobs.Path = "/data", "n1", []string{"n1=" + address}, "/blobs"
	fs, store := vfs.NewMem(), memory.New()
	a := startCellOn(t, c, Host{
		FS: fs, OpenBlobs: func(context.Context, Config) (blob.Store, error) { return store, nil },
		Replication: &Replication{
			OpenControl: func() (kv.Store, error) { return control, nil },
			OpenJournal: func() (journal.Journal, error) { return entries.Open(), nil },
		},
	})
	fill(t, a)
	stopCell(t, a)
	head, err := entries.Open().Head(t.Context())
	if err != nil || head.Seq == 0 {
		t.Errorf("the journal is at entry %d, %v", head.Seq, err)
	}
	if names, err := fs.List(etcdFolder(c.Data)); err == nil {
		t.Errorf("there is an etcd: %v", names)
	}
}
