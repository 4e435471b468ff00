package pebblelog

import (
	"errors"
	"fmt"
	"strings"
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
	// lost has the first error for which Pebble wanted to end the process while the guard was not armed, in a goroutine of its own.
	lost chan error
	// harmless is a subfolder in which nothing that fails is the database's: of snapshots.
	harmless string
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
	return g.harmless != "" && strings.HasPrefix(name, g.harmless)
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
	gf := &guardFile{File: f, g: g, name: name, table: table}
	if err := gf.check("create", err); err != nil {
		return nil, err
	}
	return gf, nil
}

// check returns err. While the guard is armed, it returns a non-nil err late or never.
func (f *guardFile) check(what string, err error) error {
	switch {
	case err == nil || !f.g.armed.Load():
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

// arm ends the time in which Pebble returns errors to the caller.
func (g *guardFS) arm() {
	g.armed.Store(true)
	select {
	case err := <-g.lost:
		g.fail(err)
	default:
	}
}

// lose is the event that a goroutine of Pebble's can't go on while the guard is not armed.
func (g *guardFS) lose(err error) {
	select {
	case g.lost <- err:
	default: // one says enough
	}
	if g.armed.Load() {
		g.arm()
	}
}

// park never returns.
func park() { select {} }

type guardFile struct {
	vfs.File
	g     *guardFS
	name  string
	table bool
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
