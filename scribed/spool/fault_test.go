package spool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

var errInjected = errors.New("injected")

func isSync(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
}

// segmentTemp ends the name of a file that is to replace segments.
const segmentTemp = ".segment" + tempSuffix

func isSegment(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".segment") }

// scenario does a bit of everything. It returns what it was told: what is synced, and what was done and saved.
func scenario(s *Spool) (synced, done map[string]bool) {
	synced, done = map[string]bool{}, map[string]bool{}
	waiting := map[string]bool{}
	for i := range 40 {
		c := []string{"a", "b", "pinned"}[i%3]
		data := payload(c, i, 700)
		refs, err := appendRecords(s, []Record{{Category: c, Messages: 1, Data: data}}, c == "b")
		if err == nil {
			waiting[string(data)] = true
			if c == "b" && i%2 == 0 {
				s.Done(refs...)
				done[string(data)] = true
			}
		}
		if i%5 == 4 {
			ctx, cancel := context.WithCancel(context.Background())
			if s.Sync(ctx) == nil {
				for d := range waiting {
					synced[d] = true
				}
			}
			cancel()
		}
		if i%8 == 7 {
			if got, err := s.Claim("a", 2000, ^Position(0), nil); err == nil {
				for _, g := range got {
					done[string(g.Data)] = true
				}
				s.Done(refsOfClaimed(got)...)
			}
		}
	}
	s.mu.Lock()
	s.mu.diskFull = true // rewrite
	s.mu.Unlock()
	s.kickKeeper.WakeUp()
	_ = s.Sync(context.Background())
	return synced, done
}

// TestFailingOperations lets each operation of the file system fail in turn, once and from then on, and crashes: what Sync said is on
// disk is given out again unless it was done, whole and in order, and nothing else is.
func TestFailingOperations(t *testing.T) { synctest.Test(t, testFailingOperations) }

func testFailingOperations(t *testing.T) {
	for _, forever := range []bool{false, true} {
		for n := 1; ; n++ {
			mem := vfs.NewCrashableMem()
			var count, fired atomic.Int64
			var armed atomic.Bool
			fs := faults(mem, func(op errorfs.Op) error {
				if !armed.Load() || op.Kind == errorfs.OpLock {
					return nil
				}
				if k := count.Add(1); k == int64(n) || forever && k > int64(n) {
					fired.Add(1)
					return errInjected
				}
				return nil
			})
			c := testConfig()
			s, err := Open(c, testDeps(fs))
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			synced, done := scenario(s)
			clone := mem.CrashClone(vfs.CrashCloneCfg{})
			closeErr := s.Close()
			armed.Store(false)
			if fired.Load() == 0 {
				if closeErr != nil {
					t.Fatal(closeErr)
				}
				if n < 100 {
					t.Errorf("only %d operations: the test does not see what the spool does", n)
				}
				break
			}
			again := openSpool(t, c, clone)
			if l := again.Losses(); len(l) > 0 {
				t.Fatalf("operation %d: a failed operation is no damage: %+v", n, l)
			}
			found := map[string]bool{}
			for _, category := range []string{"a", "b", "pinned"} {
				for _, g := range claimAll(t, again, category) {
					found[string(g.Data)] = true
				}
			}
			for d := range synced {
				if !found[d] && !done[d] {
					t.Fatalf("operation %d forever %v: %.10q was synced and is gone", n, forever, d)
				}
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFailingOpen lets each operation of Open fail: it says so, leaves nothing behind, and the next Open finds everything.
func TestFailingOpen(t *testing.T) { synctest.Test(t, testFailingOpen) }

func testFailingOpen(t *testing.T) {
	mem := vfs.NewCrashableMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	for i := range 30 {
		appendOne(t, s, "a", i, 900, false)
	}
	syncAll(t, s)
	clone := func() *vfs.MemFS { return mem.CrashClone(vfs.CrashCloneCfg{}) }
	for n := 1; ; n++ {
		fs := clone()
		var count atomic.Int64
		s, err := Open(c, testDeps(faults(fs, func(errorfs.Op) error {
			if count.Add(1) == int64(n) {
				return errInjected
			}
			return nil
		})))
		if err == nil {
			if err := s.Close(); count.Load() < int64(n) {
				if err != nil {
					t.Fatal(err)
				}
				break
			}
		} else if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		again := openSpool(t, c, fs)
		if got := claimAll(t, again, "a"); len(got) != 30 {
			t.Fatalf("operation %d: %d records of 30", n, len(got))
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailsWhileWritten: a sync fails while a record is written to the same segment, of which nothing is held any more. The segment is
// removed when the write has ended.
func TestFailsWhileWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail, hold, removed atomic.Bool
		held, release := make(chan struct{}), make(chan struct{})
		s := openSpool(t, testConfig(), faults(vfs.NewMem(), func(op errorfs.Op) error {
			switch {
			case !isSegment(op):
			case op.Kind == errorfs.OpFileSyncData && fail.CompareAndSwap(true, false):
				return errInjected
			case op.Kind == errorfs.OpFileWriteAt && hold.CompareAndSwap(true, false):
				close(held)
				<-release
			case op.Kind == errorfs.OpRemove:
				removed.Store(true)
			}
			return nil
		}))
		s.Done(appendOne(t, s, "a", 0, 100, true))
		hold.Store(true)
		written := make(chan error, 1)
		go func() {
			_, err := appendRecords(s, []Record{{Category: "a", Data: payload("a", 1, 100)}}, false)
			written <- err
		}()
		<-held
		fail.Store(true)
		_ = s.Sync(t.Context()) // that of records which nobody wants may fail
		synctest.Wait()
		if fail.Load() {
			t.Error("no sync failed")
		}
		if removed.Load() {
			t.Error("the segment was removed while it was written to")
		}
		close(release)
		if err := <-written; !errors.Is(err, ErrFailed) {
			t.Errorf("append: %v, want ErrFailed", err)
		}
		synctest.Wait()
		if !removed.Load() {
			t.Error("the segment is left")
		}
		appendOne(t, s, "a", 2, 100, false)
		settle(t, s)
		check(t, s)
		if got := claimAll(t, s, "a"); len(got) != 1 {
			t.Errorf("%d records, want 1", len(got))
		}
	})
}

// TestDiskFull: appends are refused while the disk is full, nothing of them is seen, what is there is sealed, read, done and
// reclaimed, and appends go on when there is capacity.
func TestDiskFull(t *testing.T) {
	for _, size := range []int64{40 << 10, 50 << 10, 57 << 10, 61 << 10, 70 << 10, 101 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { diskFull(t, size) }) })
	}
}

func diskFull(t *testing.T, size int64) {
	mem := vfs.NewCrashableMem()
	d := newDisk(mem)
	// What the keeper finds to remove could make room for the ballast before the second of the appends that shall be refused.
	var noBallast atomic.Bool
	fs := faults(d, func(op errorfs.Op) error {
		if noBallast.Load() && strings.HasSuffix(op.Path, ballastName) && op.Kind == errorfs.OpCreate {
			return syscall.ENOSPC
		}
		return nil
	})
	c := testConfig()
	s := openSpool(t, c, fs)
	d.limit.Store(size)
	noBallast.Store(true)
	n := 0
	var full error
	for ; n < 500; n++ {
		_, err := appendRecords(s, []Record{{Category: "a", Messages: 1, Data: payload("a", n, 900)}, {Category: "b", Messages: 1, Data: payload("b", n, 300)}}, false)
		if err != nil {
			full = err
			break
		}
	}
	if !errors.Is(full, ErrFull) || n == 0 {
		t.Fatalf("after %d appends: %v, want ErrFull", n, full)
	}
	// What the ballast has given back is not for appends.
	if _, err := appendRecords(s, []Record{{Category: "a", Data: payload("a", n, 9000)}}, false); !errors.Is(err, ErrFull) {
		t.Fatalf("another append: %v, want ErrFull", err)
	}
	noBallast.Store(false)
	settle(t, s) // sealing works although the disk is full
	check(t, s)
	again := openSpool(t, c, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0}))
	if got := claimAll(t, again, "a"); len(got) != n {
		t.Errorf("after a crash: %d records of %d", len(got), n)
	}
	for _, category := range []string{"a", "b"} {
		got := claimAll(t, s, category)
		if len(got) != n {
			t.Fatalf("%d records of %s, want %d", len(got), category, n)
		}
		s.Done(refsOfClaimed(got)...)
	}
	d.limit.Store(1 << 30)
	for i := 0; ; i++ {
		if _, err := appendRecords(s, []Record{{Category: "a", Data: payload("a", n, 9000)}}, false); err == nil {
			break
		}
		settle(t, s)
	}
	syncAll(t, s)
	if got := claimAll(t, s, "a"); len(got) != 1 {
		t.Errorf("%d records, want 1", len(got))
	}
}

// TestBallastIsThere: the disk is full for a moment, and the keeper makes the ballast again before it was removed. What the spool takes for
// its ballast is on the disk.
func TestBallastIsThere(t *testing.T) {
	mem := vfs.NewMem()
	var full atomic.Bool
	var s *Spool
	has := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mu.ballast
	}
	fs := faults(mem, func(op errorfs.Op) error {
		switch {
		case strings.HasSuffix(op.Path, ballastName) && op.Kind == errorfs.OpRemove:
			s.kickKeeper.WakeUp()
			for range 100 { // the keeper should wait
				if has() {
					break
				}
				<-time.After(time.Millisecond)
			}
		case isSegment(op) && op.Kind == errorfs.OpFileWriteAt && op.Offset > 0 && full.CompareAndSwap(true, false):
			return syscall.ENOSPC
		}
		return nil
	})
	c := testConfig()
	s = openSpool(t, c, fs)
	appendOne(t, s, "a", 0, 100, false)
	full.Store(true)
	if _, err := appendRecords(s, []Record{{Category: "a", Data: payload("a", 1, 100)}}, false); !errors.Is(err, ErrFull) {
		t.Fatalf("append: %v, want ErrFull", err)
	}
	for there := false; !there; {
		s.ballasting.Lock()
		there = has()
		if _, err := mem.Stat(mem.PathJoin(c.Dir, ballastName)); there && err != nil {
			t.Errorf("the ballast: %v", err)
		}
		s.ballasting.Unlock()
		runtime.Gosched()
	}
}

// TestHalfWritten: a write that fails in the middle leaves nothing that a crash could bring back, and the next append works.
func TestHalfWritten(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var armed atomic.Bool
	fs := &halfFS{FS: mem, mem: mem, armed: &armed}
	c := testConfig()
	s := openSpool(t, c, fs)
	appendOne(t, s, "a", 0, 500, false)
	armed.Store(true)
	recs := []Record{{Category: "a", Data: payload("a", 1, 100)}, {Category: "a", Data: payload("a", 2, 100)}, {Category: "a", Data: payload("a", 3, 100)}}
	if _, err := appendRecords(s, recs, false); !errors.Is(err, syscall.EIO) {
		t.Fatalf("append: %v", err)
	}
	armed.Store(false)
	appendOne(t, s, "a", 4, 500, false)
	settle(t, s)
	if len(fs.clones) == 0 {
		t.Fatal("nothing was synced")
	}
	for i, clone := range fs.clones { // the first ones are without a footer
		again := openSpool(t, c, clone)
		if got := claimAll(t, again, "a"); len(got) == 0 || len(got) > 2 || len(again.Losses()) > 0 {
			t.Errorf("crash %d: %d records", i, len(got))
		}
	}
	again := openSpool(t, c, mem.CrashClone(vfs.CrashCloneCfg{}))
	if got := claimAll(t, again, "a"); len(got) != 2 {
		t.Errorf("sealed: %d records, want 2", len(got))
	}
	if got := claimAll(t, s, "a"); len(got) != 2 {
		t.Errorf("%d records, want 2", len(got))
	}
}

// halfFS writes two thirds of what is appended, and then fails. It is cloned after each sync of data.
type halfFS struct {
	vfs.FS
	mem    *vfs.MemFS
	armed  *atomic.Bool
	clones []*vfs.MemFS // the syncer's, until nothing is to be synced
}

func (fs *halfFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return &halfFile{f, fs}, err
}

type halfFile struct {
	vfs.File
	fs *halfFS
}

func (f *halfFile) SyncData() error {
	err := f.File.SyncData()
	f.fs.clones = append(f.fs.clones, f.fs.mem.CrashClone(vfs.CrashCloneCfg{}))
	return err
}

func (f *halfFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.armed.CompareAndSwap(true, false) {
		n, err := f.File.WriteAt(p[:len(p)*2/3], off)
		return n, errors.Join(err, syscall.EIO)
	}
	return f.File.WriteAt(p, off)
}

// forgetful is a file system that keeps of a file whose sync failed only what was synced before, as some do.
type forgetful struct {
	vfs.FS
	fail atomic.Bool
	told chan struct{} // no file is rewritten before it is closed
}

func (fs *forgetful) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, segmentTemp) {
		<-fs.told
	}
	f, err := fs.FS.Create(name, c)
	return &forgetfulFile{File: f, fs: fs, name: name}, err
}

type forgetfulFile struct {
	vfs.File
	fs     *forgetful
	name   string
	end    atomic.Int64
	synced atomic.Int64
	failed atomic.Bool
}

func (f *forgetfulFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	f.end.Store(max(f.end.Load(), off+int64(n)))
	return n, err
}

func (f *forgetfulFile) SyncData() error {
	if strings.HasSuffix(f.name, ".segment") && f.fs.fail.CompareAndSwap(true, false) {
		f.failed.Store(true)
		return syscall.EIO
	}
	end := f.end.Load()
	err := f.File.SyncData()
	f.synced.Store(end)
	return err
}

func (f *forgetfulFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if f.failed.Load() {
		clear(p[min(int64(len(p)), max(0, f.synced.Load()-off)):])
	}
	return n, err
}

// TestForgottenBySync: a file that forgets what its sync failed for loses nothing, since that is in memory until it is elsewhere.
func TestForgottenBySync(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := &forgetful{FS: mem, told: make(chan struct{})}
	c := testConfig()
	s := openSpool(t, c, fs)
	for i := range 4 {
		appendOne(t, s, "a", i, 600, false)
		if i == 1 {
			syncAll(t, s)
		}
	}
	fs.fail.Store(true)
	if err := s.Sync(t.Context()); !errors.Is(err, ErrFailed) {
		t.Fatalf("sync: %v", err)
	}
	first := claimAll(t, s, "a") // from memory
	close(fs.told)
	syncAll(t, s)
	s.Release(refsOfClaimed(first)...)
	for i, s := range []*Spool{s, openSpool(t, c, mem.CrashClone(vfs.CrashCloneCfg{}))} {
		if got := claimAll(t, s, "a"); len(first) != 4 || len(got) != 4 || len(s.Losses()) > 0 {
			t.Errorf("%d: %d records, then %d of 4", i, len(first), len(got))
		}
	}
}

// TestDoneWhileSaved: a segment whose last record is done while the state is being saved is not removed before the state says so.
func TestDoneWhileSaved(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var (
		s      *Spool
		armed  atomic.Bool
		saves  atomic.Int64
		second []Ref
		clone  atomic.Pointer[vfs.MemFS]
		saved  = make(chan struct{})
	)
	fs := faults(mem, func(op errorfs.Op) error {
		if armed.Load() && op.Kind == errorfs.OpFileWriteAt && strings.Contains(op.Path, "/"+stateName) {
			switch saves.Add(1) {
			case 1:
				s.Done(second...)
			case 2:
				clone.Store(mem.CrashClone(vfs.CrashCloneCfg{}))
				close(saved)
			}
		}
		return nil
	})
	c := testConfig()
	s = openSpool(t, c, fs)
	var all []Ref
	for i := range 20 {
		all = append(all, appendOne(t, s, "a", i, 2000, true))
	}
	settle(t, s)
	var first []Ref
	for _, r := range all {
		switch r.Position.Segment() {
		case 1:
			first = append(first, r)
		case 2:
			second = append(second, r)
		}
	}
	armed.Store(true)
	s.Done(first...)
	settle(t, s)
	for ticks, began := time.NewTicker(time.Millisecond), time.Now(); clone.Load() == nil; {
		s.kickKeeper.WakeUp()
		select {
		case <-saved:
		case <-ticks.C:
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the state was not saved before the second segment was removed")
		}
	}
	again := openSpool(t, c, clone.Load())
	if l := again.Losses(); len(l) > 0 {
		t.Errorf("a removed segment is taken for a loss: %+v", l)
	}
}

// TestStateOfUnsynced: what the state says of records that a crash took is not taken for what is left.
func TestStateOfUnsynced(t *testing.T) {
	mem := vfs.NewCrashableMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	appendOne(t, s, "a", 0, 100, false)
	appendOne(t, s, "a", 1, 100, false)
	syncAll(t, s)
	s.Done(appendOne(t, s, "a", 7, 100, true), appendOne(t, s, "a", 14, 100, true)) // no larger than what stays
	saveNow(t, s)
	mem = mem.CrashClone(vfs.CrashCloneCfg{})
	s = openSpool(t, c, mem)
	settle(t, s) // the segment has a footer now, and the state is not saved
	s = openSpool(t, c, mem.CrashClone(vfs.CrashCloneCfg{}))
	if got := claimAll(t, s, "a"); len(got) != 2 {
		t.Errorf("%d records of 2", len(got))
	}
}
