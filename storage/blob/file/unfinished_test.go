package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/storage/blob/file"
)

// TestSharedFolder opens a store at every operation of another one's Put: it must not take the unfinished blob for a leftover, nor
// the folder that is about to be locked.
func TestSharedFolder(t *testing.T) {
	for _, base := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"in memory", vfs.NewMem(), root}, {"on disk", vfs.Default, t.TempDir()}} {
		t.Run(base.name, func(t *testing.T) {
			var (
				armed  bool
				opened int
				seen   = map[errorfs.OpKind]int{}
			)
			fs := errorfs.Wrap(base.fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				// Twice for each kind: who finds every folder removed before it is locked can't make one.
				if seen[op.Kind]++; armed && seen[op.Kind] <= 2 {
					opened++
					other := open(t, base.dir, file.Options{FS: base.fs})
					if err := other.Close(); err != nil {
						t.Error(err)
					}
				}
				return nil
			}))
			s := open(t, base.dir, file.Options{FS: fs})
			for i := range 3 {
				armed, seen = true, map[errorfs.OpKind]int{}
				put(t, s, fmt.Sprint("blobs/24h/", i))
				armed = false
			}
			if opened < 20 {
				t.Errorf("the folder was opened %d times: the test does not see what the store does", opened)
			}
			if left := unfinished(t, base.fs, base.dir); len(left) > 0 {
				t.Errorf("left in .unfinished: %q", left)
			}
		})
	}
}

// TestLeftoversVanish opens many stores at once on a folder with leftovers: each finds some that another one has just removed.
func TestLeftoversVanish(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		folder := filepath.Join(dir, ".unfinished", fmt.Sprint("crashed-", i))
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 10 {
			if err := os.WriteFile(filepath.Join(folder, fmt.Sprint(j)), []byte("half a blob"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var wg sync.WaitGroup
	stores := make([]*file.Store, 8)
	for i := range stores {
		wg.Go(func() {
			s, err := file.New(dir, file.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
			put(t, s, fmt.Sprint("blobs/24h/", i))
		})
	}
	wg.Wait()
	if left := unfinished(t, vfs.Default, dir); len(left) > 0 {
		t.Errorf("left in .unfinished: %q", left)
	}
	for _, s := range stores {
		if s != nil {
			_ = s.Close()
		}
	}
}

// TestVanishingLeftover removes a leftover just before each operation on it.
func TestVanishingLeftover(t *testing.T) {
	for n := 1; ; n++ {
		mem := vfs.NewMem()
		for _, path := range []string{"a/LOCK", "a/1", "b.removed/1", "c.removed/1"} {
			path = root + "/.unfinished/" + path
			if err := mem.MkdirAll(mem.PathDir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := mem.Create(path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
		}
		count := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if strings.Contains(op.Path, "/.unfinished/") {
				if count++; count == n {
					_ = mem.RemoveAll(op.Path)
				}
			}
			return nil
		}))
		s, err := file.New(root, file.Options{FS: fs})
		if err != nil {
			t.Fatalf("without the path of operation %d: %v", n, err)
		}
		_ = s.Close()
		if count < n {
			if n < 10 {
				t.Errorf("only %d operations: the test does not see what the store does", count)
			}
			return
		}
	}
}

// TestUnfinishedFolderRemoved: somebody empties .unfinished under a running store. The Put that meets it fails at most, the next one does not.
func TestUnfinishedFolderRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, file.Options{})
	put(t, s, "a/1")
	if err := os.RemoveAll(filepath.Join(dir, ".unfinished")); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a/2", []byte("x")); err == nil {
		t.Error("Put without a folder for unfinished blobs succeeds")
	}
	put(t, s, "a/3")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadOnlyUse: a store that only reads makes no folder, for which a full disk has no room.
func TestReadOnlyUse(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, file.Options{})
	put(t, s, "a/1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, file.Options{})
	if err := s.ReadAt(t.Context(), "a/1", make([]byte, 10), 0); err != nil {
		t.Error(err)
	}
	if err := s.Delete(t.Context(), "a/1"); err != nil {
		t.Error(err)
	}
	if names, err := os.ReadDir(filepath.Join(dir, ".unfinished")); err != nil || len(names) != 0 {
		t.Errorf(".unfinished has %v, %v", names, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
