package sim

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
)

// disk is the disk of a host: a file system in memory that knows what was synced.
type disk struct {
	mu  sync.Mutex
	mem *vfs.MemFS
	// full makes writes fail with ENOSPC.
	full atomic.Bool
	// syncTime is how long a sync takes at most.
	syncTime time.Duration
	rng      *rand.Rand
	digest   *digest
	host     string
}

func newDisk(rng *rand.Rand, d *digest, host string, syncTime time.Duration) *disk {
	return &disk{digest: d, host: host, mem: vfs.NewCrashableMem(), rng: rng, syncTime: syncTime}
}

// mount returns the file system for a process. What a process that is gone still writes does not reach the disk: crash has left it a copy.
func (d *disk) mount() vfs.FS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mountedFS{FS: d.mem, d: d}
}

// mountInstant is mount for a program under which no sync takes time.
func (d *disk) mountInstant() vfs.FS {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &mountedFS{FS: d.mem, d: d, instant: true}
}

// crash separates the disk from the process that used it. After kill -9 the disk has all that was written. After a loss of power it has
// what was synced, and of the rest any part.
func (d *disk) crash(powerLoss bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := 100
	if powerLoss {
		kept = []int{0, 0, 50, 90}[d.rng.IntN(4)]
	}
	d.mem = d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: d.rng})
}

// destroy leaves an empty disk. With keep, a data folder loses only its metadata folders, and the rest of it gets another name.
func (d *disk) destroy(keep bool, folders ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !keep {
		d.mem = vfs.NewCrashableMem()
		return nil
	}
	for _, name := range folders {
		if err := d.mem.RemoveAll("/data/" + name); err != nil {
			return err
		}
	}
	return errors.Join(d.mem.Rename("/data", "/old"), durable.SyncFolder(d.mem, "/"))
}

// copyTo copies a file or a folder to a disk, durably. It reports whether there was one.
func (d *disk) copyTo(to *disk, from, name string) (bool, error) {
	d.mu.Lock()
	source := d.mem
	d.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	if err := errors.Join(durable.CreateFolder(to.mem, filepath.Dir(name), 0o750), to.mem.RemoveAll(name)); err != nil {
		return false, err
	}
	done, err := vfs.Clone(source, to.mem, from, name, vfs.CloneSync)
	if err == nil && done {
		err = durable.SyncFolder(to.mem, filepath.Dir(name))
	}
	return done, err
}

// mountedFS is the disk as a process sees it. Only syncs of write-ahead logs take (virtual) time: elsewhere Pebble and the roles may hold a
// mutex, and a bubble's time stands still while somebody waits for a mutex.
type mountedFS struct {
	vfs.FS
	d       *disk
	instant bool
}

// walCategory is what Pebble calls its write-ahead logs.
const walCategory vfs.DiskWriteCategory = "pebble-wal"

func (m *mountedFS) wrap(f vfs.File, c vfs.DiskWriteCategory, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &mountedFile{File: f, d: m.d, wal: c == walCategory && !m.instant}, nil
}

func (d *disk) mayWrite() error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return nil
}

func (m *mountedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := m.d.mayWrite(); err != nil {
		return nil, err
	}
	f, err := m.FS.Create(name, c)
	return m.wrap(f, c, err)
}

func (m *mountedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := m.FS.OpenReadWrite(name, c, opts...)
	return m.wrap(f, c, err)
}

func (m *mountedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := m.FS.ReuseForWrite(oldname, newname, c)
	return m.wrap(f, c, err)
}

// Unwrap implements vfs.FS.
func (m *mountedFS) Unwrap() vfs.FS { return m.FS }

// mountedFile is a file that a process writes.
type mountedFile struct {
	vfs.File
	d   *disk
	wal bool
}

func (f *mountedFile) Write(b []byte) (int, error) {
	if err := f.d.mayWrite(); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *mountedFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.d.mayWrite(); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

func (f *mountedFile) Preallocate(off, length int64) error {
	if err := f.d.mayWrite(); err != nil {
		return err
	}
	return f.File.Preallocate(off, length)
}

func (f *mountedFile) Sync() error {
	f.delaySync()
	return f.File.Sync()
}

func (f *mountedFile) SyncData() error {
	f.delaySync()
	return f.File.SyncData()
}

func (f *mountedFile) SyncTo(length int64) (fullSync bool, err error) {
	f.delaySync()
	return f.File.SyncTo(length)
}

// delaySync waits as long as a sync takes.
func (f *mountedFile) delaySync() {
	f.d.digest.note(f.d.host, "sync")
	if !f.wal {
		return
	}
	d := f.d
	d.mu.Lock()
	wait := time.Duration(0)
	if d.syncTime > 0 {
		wait = time.Duration(d.rng.Int64N(int64(d.syncTime)))
	}
	d.mu.Unlock()
	time.Sleep(wait)
}

func (d *disk) setSyncTime(t time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncTime = t
}
