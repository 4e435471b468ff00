package app

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
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
