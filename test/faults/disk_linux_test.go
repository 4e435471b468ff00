package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"scribe/test/program"
)

// TestFullDisk fills the disk of each part that keeps something, under load: who can't write says so, loses nothing of what was
// acknowledged, and goes on, or can be started again, when there is room.
func TestFullDisk(t *testing.T) {
	t.Run("of the metadata logs", func(t *testing.T) {
		s := prepare(t, "full metalog")
		disk := newSmallDisk(t, 64)
		s.load(startCell(t, s.seed, layout{data: map[string]string{metaLog: filepath.Join(disk.dir, "data")}}))
		for range rounds(t) {
			s.full(disk, s.c.member(metaLog))
		}
		s.end()
	})
	t.Run("of the categories", func(t *testing.T) {
		s := prepare(t, "full controlplane")
		disk := newSmallDisk(t, 64)
		s.load(startCell(t, s.seed, layout{data: map[string]string{controlPlane: filepath.Join(disk.dir, "data")}}))
		for range rounds(t) {
			s.full(disk, s.c.member(controlPlane))
		}
		program.OK(t, nil, "category", "create", "afterwards", "--server", s.c.url(controlPlane))
		s.end()
	})
	t.Run("of the payloads", func(t *testing.T) {
		s := prepare(t, "full blobs")
		disk := newSmallDisk(t, 256)
		s.load(startCell(t, s.seed, layout{files: filepath.Join(disk.dir, "blobs")}))
		for range rounds(t) {
			s.full(disk)
		}
		s.end()
	})
	t.Run("of one process with all roles", func(t *testing.T) {
		s := prepare(t, "full up")
		disk := newSmallDisk(t, 256)
		s.load(startSingle(t, filepath.Join(disk.dir, "data")))
		for range rounds(t) {
			s.full(disk, s.c.single)
		}
		s.end()
	})
}

// full fills a disk for a while. Processes that keep metadata on it may end, with an error that says why; nobody else may.
func (s *scenario) full(disk *smallDisk, may ...*member) {
	s.Helper()
	// One that ends takes its time for it: it may be at it when there is room again, and for as long as others wait for it.
	revive := func() {
		for _, m := range s.c.members {
			select {
			case <-m.proc.Done:
				s.revive(m, slices.Contains(may, m))
			default:
			}
		}
	}
	s.w.meanwhile = revive
	defer func() { s.w.meanwhile = nil }()
	s.step("a full disk", 0, func() {
		disk.fill()
		s.awaitTrouble(may)
	}, func() {
		disk.free()
		revive()
	})
}

// revive starts a process again that has ended for lack of room.
func (s *scenario) revive(m *member, allowed bool) {
	s.Helper()
	if log := m.proc.Log.String(); !allowed || !strings.Contains(log, syscall.ENOSPC.Error()) {
		s.Errorf("%s ended with %v on a full disk:\n%s", m.name, m.proc.Err, log)
	}
	s.Logf("%s ended with %v", m.name, m.proc.Err)
	m.front.Target("")
	s.c.remember(m)
	s.c.killed++
	s.c.start(m)
}

// awaitTrouble lets the load go on with a full disk until a process has ended, or for as long as an outage.
func (s *scenario) awaitTrouble(may []*member) {
	over := time.After(outage(s.T))
	if len(may) == 0 {
		<-over
		return
	}
	select {
	case <-may[0].proc.Done:
	case <-over:
	}
}

// smallDisk is a file system of its own with little room.
type smallDisk struct {
	t   *testing.T
	dir string
}

// newSmallDisk mounts a disk of some MiB in memory for the time of a test.
func newSmallDisk(t *testing.T, size int) *smallDisk {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "root, to mount a file system")
	}
	if program.CountNodes(t) > 0 {
		size += 450 // etcd's log is made in files of 64 MB, and there are several
	}
	d := &smallDisk{t: t, dir: t.TempDir()}
	program.Unmount(t, d.dir)
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", size)); err != nil {
		t.Fatalf("mount: %v", err)
	}
	return d
}

func (d *smallDisk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves no room.
func (d *smallDisk) fill() {
	d.t.Helper()
	f, err := os.Create(d.ballast())
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		n, err := f.Write(chunk)
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			d.t.Fatal(err)
		}
		if err != nil && n == 0 {
			chunk = chunk[:len(chunk)/2]
		}
	}
}

// free makes room again.
func (d *smallDisk) free() {
	d.t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		d.t.Fatal(err)
	}
}
