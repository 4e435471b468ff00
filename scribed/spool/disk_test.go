package spool

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// disk is a file system of limited size that counts. Files take what was preallocated or written, whatever is more.
type disk struct {
	vfs.FS
	limit atomic.Int64 // 0 = none

	reads, readBytes, syncs atomic.Int64

	mu struct {
		sync.Mutex
		files map[string]*extent
		used  int64
		most  int64 // of what is below the folder but for ballast, quarantine and keys
	}
}

// extent is what a file takes.
type extent struct {
	bytes   int64
	counted bool
}

func newDisk(fs vfs.FS) *disk {
	d := &disk{FS: fs}
	d.mu.files = map[string]*extent{}
	return d
}

func counts(path string) bool {
	return !strings.Contains(path, ballastName) && !strings.Contains(path, quarantineName) && !strings.Contains(path, "/"+keysName)
}

// take grows a file to n bytes.
func (d *disk) take(f *extent, n int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n <= f.bytes {
		return nil
	}
	if limit := d.limit.Load(); limit > 0 && d.mu.used+n-f.bytes > limit {
		return syscall.ENOSPC
	}
	d.mu.used += n - f.bytes
	f.bytes = n
	d.note()
	return nil
}

func (d *disk) note() {
	var sum int64
	for _, f := range d.mu.files {
		if f.counted {
			sum += f.bytes
		}
	}
	d.mu.most = max(d.mu.most, sum)
}

func (d *disk) room() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limit.Load() - d.mu.used
}

func (d *disk) mostUsed() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.most
}

func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	d.forget(name)
	f, err := d.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	s := &extent{counted: counts(name)}
	d.mu.Lock()
	d.mu.files[name] = s
	d.mu.Unlock()
	return &diskFile{f, d, s}, nil
}

func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d, d.of(name)}, nil
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(name, c, opts...)
	if err != nil {
		return nil, err
	}
	return &diskFile{f, d, d.of(name)}, nil
}

func (d *disk) of(name string) *extent {
	info, err := d.Stat(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.mu.files[name]
	if s == nil {
		s = &extent{counted: counts(name)}
		d.mu.files[name] = s
		if err == nil {
			s.bytes = info.Size()
			d.mu.used += s.bytes
			d.note()
		}
	}
	return s
}

func (d *disk) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.mu.files[name]; s != nil {
		d.mu.used -= s.bytes
		delete(d.mu.files, name)
	}
}

func (d *disk) Remove(name string) error {
	if err := d.FS.Remove(name); err != nil {
		return err
	}
	d.forget(name)
	return nil
}

func (d *disk) Rename(from, to string) error {
	if err := d.FS.Rename(from, to); err != nil {
		return err
	}
	d.forget(to)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.mu.files[from]; s != nil {
		d.mu.files[to] = s
		delete(d.mu.files, from)
	}
	return nil
}

type diskFile struct {
	vfs.File
	d *disk
	s *extent
}

func (f *diskFile) Preallocate(off, n int64) error {
	if err := f.d.take(f.s, off+n); err != nil {
		return err
	}
	return f.File.Preallocate(off, n)
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.d.take(f.s, off+int64(len(p))); err != nil {
		// As a disk does it: what fits is written.
		n := min(int64(len(p)), max(0, f.d.room())+max(0, f.s.bytes-off)) / 2
		if n > 0 && f.d.take(f.s, off+n) == nil {
			k, werr := f.File.WriteAt(p[:n], off)
			if werr != nil {
				return k, werr
			}
			return k, err
		}
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *diskFile) Truncate(n int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.mu.used += n - f.s.bytes
	f.s.bytes = n
	return nil
}

func (f *diskFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.count(n)
	return n, err
}

func (f *diskFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.count(n)
	return n, err
}

func (f *diskFile) count(n int) {
	f.d.reads.Add(1)
	f.d.readBytes.Add(int64(n))
}

func (f *diskFile) Sync() error {
	f.d.syncs.Add(1)
	return f.File.Sync()
}

func (f *diskFile) SyncData() error {
	f.d.syncs.Add(1)
	return f.File.SyncData()
}

// faults is a file system whose operations fail as fn says.
func faults(fs vfs.FS, fn func(op errorfs.Op) error) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(fn))
}

var _ vfs.FS = (*disk)(nil)
