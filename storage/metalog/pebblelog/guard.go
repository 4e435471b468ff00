package pebblelog

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardFS hides errors of Pebble's log and manifest from Pebble.
//
// Pebble can't handle them: it ends the process, through Logger.Fatalf, through a panic, or (when the write-ahead log can't be
// replaced) by unlocking a mutex that is not locked, which no recover stops. A role that shares its process with others must not
// do that. So the guard reports the error to the engine, which then answers all calls with it, and never returns to Pebble: the
// goroutine is parked, together with everything that waits for it. Nothing is acknowledged after the error, because the commit
// that met it never ends. The engine does not touch Pebble again, and its folder stays locked, since Pebble's other goroutines
// may still write there. The only remedy is to restart the process.
//
// Errors of tables (flushes and compactions) go to Pebble, which retries at once: on a full disk it would do nothing else. So the
// guard delays these errors.
type guardFS struct {
	vfs.FS
	// armed is false while the engine opens and closes: then Pebble returns errors to the caller.
	armed atomic.Bool
	fail  func(error)
	// lost is closed when a goroutine of Pebble's can't go on while the guard is not armed, for lostErr: then calls of the database may never
	// return.
	lost     chan struct{}
	lostOnce sync.Once
	lostErr  error
	// harmless are subfolders in which nothing that fails is the database's: of snapshots and of copies.
	harmless []string
	closing  <-chan struct{} // ends pauses
}

// tablePause is the delay of an error of a table.
const tablePause = 50 * time.Millisecond

// Categories of the files whose writes must not fail.
const (
	categoryWAL      vfs.DiskWriteCategory = "pebble-wal"
	categoryManifest vfs.DiskWriteCategory = "pebble-manifest"
	categoryMarker   vfs.DiskWriteCategory = vfs.WriteCategoryUnspecified // names the current manifest
)

// Create implements vfs.FS.
//
// A marker makes a manifest current, and Pebble does not sync the folder between creating the manifest and the marker: after a
// crash the marker may exist without its manifest, and the folder could never be opened again. So the folder is synced first.
func (g *guardFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if g.isHarmless(name) {
		return g.FS.Create(name, category)
	}
	if category == categoryMarker {
		if err := g.syncFolder(g.PathDir(name)); err != nil {
			return nil, err
		}
	}
	f, err := g.FS.Create(name, category)
	return g.file(f, name, category, err)
}

// ReuseForWrite implements vfs.FS.
func (g *guardFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.ReuseForWrite(oldname, newname, category)
	return g.file(f, newname, category, err)
}

// OpenDir implements vfs.FS. If the folder can't be synced, a new log or manifest is useless.
func (g *guardFS) OpenDir(name string) (vfs.File, error) {
	f, err := g.FS.OpenDir(name)
	if err != nil || g.isHarmless(name) {
		return f, err
	}
	return &guardFile{File: f, g: g, name: name}, nil
}

func (g *guardFS) isHarmless(name string) bool {
	return slices.ContainsFunc(g.harmless, func(dir string) bool { return strings.HasPrefix(name, dir) })
}

func (g *guardFS) syncFolder(name string) error {
	d, err := g.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Unwrap implements vfs.FS.
func (g *guardFS) Unwrap() vfs.FS { return g.FS }

func (g *guardFS) file(f vfs.File, name string, category vfs.DiskWriteCategory, err error) (vfs.File, error) {
	table := category != categoryWAL && category != categoryManifest && category != categoryMarker
	gf := &guardFile{File: f, g: g, name: name, table: table, wal: category == categoryWAL}
	if err := gf.check("create", err); err != nil {
		return nil, err
	}
	return gf, nil
}

// check returns err. While the guard is armed, it returns a non-nil err late or never.
func (f *guardFile) check(what string, err error) error {
	switch {
	case err == nil:
	case !f.g.armed.Load():
		// Pebble would end the process, and holds its mutex when it says so.
		if !f.table && !f.wal && startedByPebble() {
			f.g.lose(fmt.Errorf("%s %s: %w", what, f.name, err))
			park()
		}
	case f.table:
		select {
		case <-time.After(tablePause):
		case <-f.g.closing:
		}
	default:
		f.g.fail(fmt.Errorf("%s %s: %w", what, f.name, err))
		park()
	}
	return err
}

// startedByPebble reports whether the goroutine is one of Pebble's: nothing of this package called into it, but for what Pebble calls.
func startedByPebble() bool {
	const own = "scribe/storage/metalog/pebblelog."
	called := []string{own + "startedByPebble", own + "(*guardFile).", own + "(*guardFS).", own + "pebbleLogger."}
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, own) && !slices.ContainsFunc(called, func(name string) bool { return strings.HasPrefix(f.Function, name) }) {
			return false
		}
		if !more {
			return true
		}
	}
}

// arm ends the time in which Pebble returns errors to the caller.
func (g *guardFS) arm() {
	g.armed.Store(true)
	select {
	case <-g.lost:
		g.fail(g.lostErr)
	default:
	}
}

// lose is the event that a goroutine of Pebble's can't go on while the guard is not armed.
func (g *guardFS) lose(err error) {
	g.lostOnce.Do(func() {
		g.lostErr = err
		close(g.lost)
	})
	if g.armed.Load() {
		g.arm()
	}
}

// unlessLost runs what calls the database while the guard is not armed. It returns as well when a goroutine of Pebble's can't go on, for which
// fn may wait for ever.
func (g *guardFS) unlessLost(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- caught(recover(), err) }()
		err = fn()
	}()
	select {
	case err := <-done:
		return err
	case <-g.lost:
		return g.lostErr
	}
}

// park never returns.
func park() { select {} }

type guardFile struct {
	vfs.File
	g     *guardFS
	name  string
	table bool
	wal   bool
}

// Write implements vfs.File.
func (f *guardFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, f.check("write", err)
}

// Sync implements vfs.File.
func (f *guardFile) Sync() error { return f.check("sync", f.File.Sync()) }

// SyncTo implements vfs.File.
func (f *guardFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	return full, f.check("sync", err)
}

// SyncData implements vfs.File.
func (f *guardFile) SyncData() error { return f.check("sync", f.File.SyncData()) }

// Close implements vfs.File.
func (f *guardFile) Close() error { return f.check("close", f.File.Close()) }
