package powerdisk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"scribe/test/powerdisk"
	"scribe/test/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newDisk(t *testing.T) (disk *powerdisk.Disk, dir string) {
	t.Helper()
	if err := powerdisk.Supported(); err != nil {
		if os.Getenv("SCRIBE_CI") != "" {
			t.Fatalf("this machine lacks %v", err)
		}
		t.Skipf("this machine lacks %v", err)
	}
	dir = t.TempDir()
	program.Unmount(t, dir)
	disk, err := powerdisk.New(powerdisk.Config{Dir: dir, Rand: rand.New(rand.NewPCG(1, 1))}) //nolint:gosec // reproducible on purpose
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	return disk, dir
}

// cycle takes the power away and gives it back.
func cycle(t *testing.T, d *powerdisk.Disk) {
	t.Helper()
	d.PowerOff()
	if err := d.PowerOn(); err != nil {
		t.Fatal(err)
	}
}

func try(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a file, synced or not.
func write(t *testing.T, path string, data []byte, sync bool) {
	t.Helper()
	f, err := os.Create(path)
	try(t, err)
	_, err = f.Write(data)
	try(t, err)
	if sync {
		try(t, f.Sync())
	}
	try(t, f.Close())
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	d, err := os.Open(path)
	try(t, err)
	try(t, d.Sync())
	try(t, d.Close())
}

// TestFileSystem does what programs do, and reads it back through the mount.
func TestFileSystem(t *testing.T) {
	_, dir := newDisk(t)
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	write(t, filepath.Join(dir, "a"), big, true)
	try(t, os.MkdirAll(filepath.Join(dir, "x", "y"), 0o750))
	try(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "x", "b")))
	got, err := os.ReadFile(filepath.Join(dir, "x", "b"))
	if err != nil || !bytes.Equal(got, big) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
	for _, name := range []string{"3", "1", "2"} {
		write(t, filepath.Join(dir, "x", "y", name), nil, false)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "x", "y"))
	try(t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if !slices.Equal(names, []string{"1", "2", "3"}) {
		t.Errorf("the folder has %q", names)
	}
	f, err := os.OpenFile(filepath.Join(dir, "x", "b"), os.O_RDWR|os.O_APPEND, 0)
	try(t, err)
	_, err = f.WriteString("end")
	try(t, err)
	try(t, f.Truncate(int64(len(big)+2)))
	try(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(len(big)+10)))
	try(t, os.Remove(filepath.Join(dir, "x", "b")))
	buf := make([]byte, 20)
	if n, _ := f.ReadAt(buf, int64(len(big)-2)); string(buf[:n]) != "89en\x00\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("the end of a file that was removed while open is %q", buf[:n])
	}
	try(t, f.Close())
	if err := os.Remove(filepath.Join(dir, "x")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("remove a folder that is not empty: %v", err)
	}
	try(t, os.RemoveAll(filepath.Join(dir, "x")))
}

// TestPowerLoss: what was synced is there after any power loss, and each way to lose the rest happens in some.
func TestPowerLoss(t *testing.T) {
	synced, unsynced := bytes.Repeat([]byte{1}, 20_000), bytes.Repeat([]byte{2}, 20_000)
	happened := map[string]int{}
	disk, dir := newDisk(t)
	for range 60 {
		path := func(name string) string { return filepath.Join(dir, name) }
		write(t, path("synced"), synced, true)
		write(t, path("content"), synced, true)
		write(t, path("new"), synced, true)
		syncDir(t, dir)
		// From here on nothing is certain.
		write(t, path("name"), synced, true)
		f, err := os.OpenFile(path("content"), os.O_WRONLY, 0)
		try(t, err)
		_, err = f.Write(unsynced)
		try(t, err)
		try(t, f.Close())
		try(t, os.Rename(path("new"), path("renamed")))
		cycle(t, disk)

		if got, err := os.ReadFile(path("synced")); err != nil || !bytes.Equal(got, synced) {
			t.Fatalf("what was synced: %d bytes, %v", len(got), err)
		}
		if _, err := os.Stat(path("name")); err != nil {
			happened["a name is lost"]++
		} else {
			happened["a name is kept"]++
		}
		got, err := os.ReadFile(path("content"))
		try(t, err)
		switch {
		case bytes.Equal(got, synced):
			happened["content is lost"]++
		case bytes.Equal(got, unsynced):
			happened["content is kept"]++
		default:
			happened["content is mixed"]++
		}
		_, errOld := os.Stat(path("new"))
		_, errNew := os.Stat(path("renamed"))
		switch {
		case (errOld == nil) == (errNew == nil):
			t.Fatalf("after a rename: the old name %v, the new name %v", errOld, errNew)
		case errOld == nil:
			happened["a rename is lost"]++
		default:
			happened["a rename is kept"]++
		}
		for _, name := range []string{"name", "new", "renamed"} {
			_ = os.Remove(path(name))
		}
		syncDir(t, dir)
	}
	for _, what := range []string{"a name is lost", "a name is kept", "content is lost", "content is kept", "content is mixed", "a rename is lost", "a rename is kept"} {
		if happened[what] == 0 {
			t.Errorf("in 60 power losses it did not happen that %s: %v", what, happened)
		}
	}
}

// TestPowerOff: nothing works any more, so nobody can take a sync for done that is not.
func TestPowerOff(t *testing.T) {
	disk, dir := newDisk(t)
	f, err := os.Create(filepath.Join(dir, "a"))
	try(t, err)
	disk.PowerOff()
	if _, err := f.WriteString("x"); !errors.Is(err, syscall.EIO) {
		t.Errorf("write: %v", err)
	}
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	_ = f.Close()
	try(t, disk.PowerOn())
	write(t, filepath.Join(dir, "b"), []byte("x"), true)
}

// TestFailSyncs: syncs fail as long as they shall.
func TestFailSyncs(t *testing.T) {
	disk, dir := newDisk(t)
	f, err := os.Create(filepath.Join(dir, "a"))
	try(t, err)
	defer func() { _ = f.Close() }()
	disk.FailSyncs(true)
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	disk.FailSyncs(false)
	try(t, f.Sync())
}

// TestFill: a full disk takes nothing new, and what is written over older data; when there is room again everything goes on.
func TestFill(t *testing.T) {
	disk, dir := newDisk(t)
	old, other := filepath.Join(dir, "old"), filepath.Join(dir, "other")
	write(t, old, bytes.Repeat([]byte("x"), 8192), true)
	f, err := os.OpenFile(old, os.O_RDWR, 0)
	try(t, err)
	defer func() { _ = f.Close() }()
	disk.Fill(true)
	if _, err := f.WriteAt([]byte("y"), 4096); err != nil {
		t.Errorf("over older data: %v", err)
	}
	if _, err := f.WriteAt([]byte("y"), 8192); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("after its end: %v", err)
	}
	if err := os.WriteFile(other, []byte("z"), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new file: %v", err)
	}
	try(t, f.Sync())
	disk.Fill(false)
	try(t, os.WriteFile(other, []byte("z"), 0o600))
	if _, err := f.WriteAt([]byte("y"), 8192); err != nil {
		t.Error(err)
	}
}
