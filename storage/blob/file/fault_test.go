package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/storage/blob"
	"scribe/storage/blob/file"
)

const root = "/data/blobs"

// content is the blob that the tests of this file put under key.
func content(key string) []byte {
	return bytes.Repeat([]byte(key+"|"), 20_000/len(key))
}

func put(tb testing.TB, s *file.Store, key string) {
	tb.Helper()
	c := content(key)
	if err := s.Put(tb.Context(), key, c[:100], c[100:]); err != nil {
		tb.Fatal(err)
	}
}

// contents opens the store on fs and returns the keys in it. A blob that is not whole fails the test, as does a file that no store writes any more.
func contents(tb testing.TB, fs vfs.FS) map[string]bool {
	tb.Helper()
	s := open(tb, root, file.Options{FS: fs})
	keys := map[string]bool{}
	for info, err := range s.List(tb.Context(), "") {
		if err != nil {
			tb.Fatal(err)
		}
		want := content(info.Key)
		got := make([]byte, info.Size)
		if err := s.ReadAt(tb.Context(), info.Key, got, 0); err != nil {
			tb.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			tb.Errorf("%s: %d bytes that are not those that were put", info.Key, info.Size)
		}
		keys[info.Key] = true
	}
	if left := unfinished(tb, fs, root); len(left) > 0 {
		tb.Errorf("left in .unfinished: %q", left)
	}
	return keys
}

// unfinished returns the files in .unfinished, without the locks of stores.
func unfinished(tb testing.TB, fs vfs.FS, dir string) (files []string) {
	tb.Helper()
	tmp := fs.PathJoin(dir, ".unfinished")
	folders, err := fs.List(tmp)
	if err != nil {
		tb.Fatal(err)
	}
	for _, folder := range folders {
		names, err := fs.List(fs.PathJoin(tmp, folder))
		if err != nil {
			files = append(files, folder) // a file
		}
		for _, name := range names {
			if name != "LOCK" {
				files = append(files, fs.PathJoin(folder, name))
			}
		}
	}
	return files
}

// TestPowerLoss crashes the machine before every single operation on the file system during a number of puts, keeping none, some
// or all of what was not synced. What Put had acknowledged must be there, and nothing may be there in part.
func TestPowerLoss(t *testing.T) {
	mem := vfs.NewCrashableMem()
	type crash struct {
		op           errorfs.Op
		acknowledged []string
		fs           *vfs.MemFS
	}
	var (
		crashes      []crash
		acknowledged []string
	)
	rng := rand.New(rand.NewPCG(1, 2))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		for _, percent := range []int{0, 50, 100} {
			crashes = append(crashes, crash{
				op: op, acknowledged: acknowledged,
				fs: mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}),
			})
		}
		return nil
	}))
	s := open(t, root, file.Options{FS: fs})
	for _, key := range []string{"blobs/24h/1", "blobs/24h/2", "blobs/72h/1", "top", "a/b/c/d"} {
		put(t, s, key)
		acknowledged = append(slices.Clip(acknowledged), key)
	}
	if _, err := s.Stat(t.Context(), "top"); err != nil { // one more operation, so one more crash
		t.Fatal(err)
	}
	if len(crashes) < 100 {
		t.Fatalf("only %d crashes: the test does not see what the store does", len(crashes))
	}
	for i, c := range crashes {
		keys := contents(t, c.fs)
		for _, key := range c.acknowledged {
			if !keys[key] {
				t.Errorf("crash %d, before operation %d on %s: %s was acknowledged and is gone", i, c.op.Kind, c.op.Path, key)
			}
		}
	}
	if n := len(crashes[len(crashes)-1].acknowledged); n != 5 {
		t.Errorf("%d keys were acknowledged at the end, want 5", n)
	}
}

// TestPowerLossInNewFolder: a Put that finds a folder which another one has just created must not rely on it. The first Put is held
// before it syncs the folder into its parent; the second must make that durable itself.
func TestPowerLossInNewFolder(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var (
		hold    atomic.Bool
		held    = make(chan struct{})
		release = make(chan struct{})
	)
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpenDir && hold.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
		return nil
	}))
	s := open(t, root, file.Options{FS: fs})
	hold.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() { put(t, s, "blobs/24h/first") })
	<-held
	put(t, s, "blobs/24h/second")
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	close(release)
	wg.Wait()
	if keys := contents(t, clone); !keys["blobs/24h/second"] || len(keys) != 1 {
		t.Errorf("after the crash: %v, want the second blob", keys)
	}
	if keys := contents(t, mem.CrashClone(vfs.CrashCloneCfg{})); len(keys) != 2 {
		t.Errorf("in the end: %v, want both", keys)
	}
}

// TestFailingOperation lets each operation of a Put fail in turn.
func TestFailingOperation(t *testing.T) {
	injected := errors.New("injected")
	const key = "blobs/24h/1"
	failed := map[errorfs.OpKind]int{}
	for n := range 1000 {
		mem := vfs.NewCrashableMem()
		count, armed := 0, false
		var op errorfs.Op
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(o errorfs.Op) error {
			if !armed {
				return nil
			}
			if count++; count == n+1 {
				op = o
				return injected
			}
			return nil
		}))
		s := open(t, root, file.Options{FS: fs})
		armed = true
		c := content(key)
		err := s.Put(t.Context(), key, c[:100], c[100:])
		armed = false
		if count <= n {
			break // that were all
		}
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		switch {
		case err == nil && !contents(t, clone)[key]:
			t.Errorf("operation %d (%d on %s) failed, Put did not, and the blob is gone after a crash", n, op.Kind, op.Path)
		case err != nil && !errors.Is(err, injected):
			t.Errorf("operation %d (%d on %s): Put fails with %v", n, op.Kind, op.Path, err)
		case err == nil && op.Kind == errorfs.OpFileSync:
			t.Errorf("operation %d: sync of %s failed, Put did not", n, op.Path)
		}
		if err != nil {
			failed[op.Kind]++
		}
		// Damaged or not, the store goes on.
		put(t, s, "blobs/24h/2")
		if keys := contents(t, mem.CrashClone(vfs.CrashCloneCfg{})); !keys["blobs/24h/2"] {
			t.Errorf("after a failure of operation %d, the next blob is gone after a crash: %v", n, keys)
		}
		// What could not be removed goes with the store.
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		contents(t, mem)
	}
	// The file, its folder, and the two folders above it.
	if failed[errorfs.OpFileSync] != 4 {
		t.Errorf("%d syncs made Put fail, want 4", failed[errorfs.OpFileSync])
	}
	for _, kind := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpLink, errorfs.OpOpenDir, errorfs.OpMkdirAll} {
		if failed[kind] == 0 {
			t.Errorf("no operation of kind %d made Put fail", kind)
		}
	}
}

func TestNoSpace(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		for _, kind := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpMkdirAll, errorfs.OpLink} {
			var armed atomic.Bool
			mem := vfs.NewMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == kind && armed.Load() {
					return &os.PathError{Op: "test", Path: op.Path, Err: full}
				}
				return nil
			}))
			s := open(t, root, file.Options{FS: fs})
			armed.Store(true)
			err := s.Put(t.Context(), "blobs/24h/1", content("blobs/24h/1"))
			if !errors.Is(err, blob.ErrNoSpace) || !errors.Is(err, full) || !strings.Contains(err.Error(), "blobs/24h/1") {
				t.Errorf("operation %d fails with %v: %v", kind, full, err)
			}
			armed.Store(false)
			if keys := contents(t, mem); len(keys) != 0 {
				t.Errorf("operation %d fails with %v: %v", kind, full, keys)
			}
		}
	}
}

// TestLeftovers: what a crash left in .unfinished and in .tmp is removed, what is foreign is left alone and not listed.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) string {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("half a blob"), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	left := []string{write(".unfinished/crashed/1"), write(".unfinished/crashed/LOCK"), write(".unfinished/unlocked/1"), write(".unfinished/other.removed/1"), write(".tmp/0123-1")}
	// The last one is of an earlier version, and so is this, which may be running.
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(left[len(left)-1], old, old); err != nil {
		t.Fatal(err)
	}
	young := write(".tmp/0123-2")
	foreign := []string{young, write(".lock"), write("lost+found/x"), write("blobs/.DS_Store"), write("blobs/a b")}
	write("blobs/24h/1")
	s := open(t, dir, file.Options{})
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	for _, path := range foreign {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
	var keys []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if fmt.Sprint(keys) != "[blobs/24h/1]" {
		t.Errorf("List yields %q", keys)
	}
	put(t, s, "blobs/24h/2")
	if got := unfinished(t, vfs.Default, dir); len(got) > 0 {
		t.Errorf("Put left %q in .unfinished", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(filepath.Join(dir, ".unfinished")); err != nil || len(names) > 0 {
		t.Errorf("Close left %v in .unfinished, %v", names, err)
	}
}

func TestNewErrors(t *testing.T) {
	if _, err := file.New("", file.Options{}); err == nil {
		t.Error("New without a folder succeeds")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := file.New(path, file.Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("New on a file: %v", err)
	}
	if _, err := file.New(filepath.Join(path, "below"), file.Options{}); err == nil {
		t.Error("New below a file succeeds")
	}
}

// TestRelativeFolder: the folder may be given in any way.
func TestRelativeFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{".", "./x/", "y/../z", "deep/er/est"} {
		s := open(t, dir, file.Options{})
		put(t, s, "blobs/24h/1")
		if _, err := os.Stat(filepath.Join(dir, "blobs", "24h", "1")); err != nil {
			t.Errorf("in %s: %v", dir, err)
		}
	}
}

// TestDamage: a blob that was truncated behind the store's back is an error of range.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, file.Options{})
	put(t, s, "a/b")
	if err := os.Truncate(filepath.Join(dir, "a", "b"), 50); err != nil {
		t.Fatal(err)
	}
	if err := s.ReadAt(t.Context(), "a/b", make([]byte, 60), 0); !errors.Is(err, blob.ErrRange) {
		t.Errorf("ReadAt of a truncated blob: %v", err)
	}
}

// TestFolderRemoved: somebody removes a folder under a running store. The Put that meets it fails, the next one makes it anew.
func TestFolderRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, file.Options{})
	put(t, s, "a/b")
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a/c", []byte("x")); err == nil {
		t.Error("Put into a folder that is gone succeeds")
	}
	put(t, s, "a/d")
}
