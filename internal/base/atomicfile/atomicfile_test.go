package atomicfile

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	must := func(want string) {
		t.Helper()
		got, err := os.ReadFile(name)
		if err != nil || string(got) != want {
			t.Errorf("the file holds %q, %v, want %q", got, err, want)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v: want nothing beside the file", entries, err)
		}
	}
	for _, text := range []string{"first, and longer", "second"} {
		if err := WriteBytes(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
		must(text)
	}
	broken := errors.New("broken")
	err := Write(name, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<20)) // more than is buffered
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("a write that fails: %v", err)
	}
	must("second")
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := WriteBytes(filepath.Join(dir, "missing", "file"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a folder that does not exist: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteBytes(filepath.Join(dir, "folder"), nil); err == nil {
		t.Error("a folder was replaced by a file")
	}
	if _, err := os.Stat(filepath.Join(dir, "folder.tmp")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a temporary file is left: %v", err)
	}
}

func TestKeepSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dirty := make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var saves []time.Duration
		start := time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			KeepSaved(ctx, dirty, time.Second, func() { saves = append(saves, time.Since(start)) })
		}()
		dirty <- struct{}{}
		synctest.Wait()
		dirty <- struct{}{} // is saved a second after the first
		<-time.After(1500 * time.Millisecond)
		dirty <- struct{}{} // is saved at the end
		cancel()
		<-ended
		if len(saves) != 3 || saves[0] != 0 || saves[1] != time.Second || saves[2] != 1500*time.Millisecond {
			t.Errorf("saved at %v", saves)
		}
	})
}
