package faults

import (
	"path/filepath"
	"testing"
	"time"

	"scribe/test/powerdisk"
	"scribe/test/program"
)

// TestPower takes the power away from the machine of a cell, again and again: what was not synced is lost, or torn, or there in any
// order. What was acknowledged is not.
func TestPower(t *testing.T) {
	t.Run("of the server", func(t *testing.T) {
		s := prepare(t, "power server")
		disk, dir := s.disk()
		s.load(startSingle(t, filepath.Join(dir, "data")))
		for range 10 * rounds(t) {
			s.powerCycle(disk, s.c.single)
		}
		s.end()
	})
}

// disk mounts a disk that can lose its power.
func (s *scenario) disk() (disk *powerdisk.Disk, dir string) {
	s.Helper()
	if err := powerdisk.Supported(); err != nil {
		missing(s.T, err.Error())
	}
	dir = s.TempDir()
	program.Unmount(s.T, dir)
	disk, err := powerdisk.New(powerdisk.Config{Dir: dir, Rand: rngOf(s.seed, "disk")})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := disk.Close(); err != nil {
			s.Error(err)
		}
	})
	return disk, dir
}

// powerCycle takes the power away from a disk and the processes on it, and starts them again.
func (s *scenario) powerCycle(disk *powerdisk.Disk, on ...*member) {
	s.Helper()
	s.step("a power loss", time.Duration(s.rng.IntN(300))*time.Millisecond, func() {
		for _, m := range on {
			s.c.remember(m)
		}
		disk.PowerOff()
		for _, m := range on {
			s.c.kill(m)
		}
	}, func() {
		if err := disk.PowerOn(); err != nil {
			s.Fatal(err)
		}
		s.c.start(on...)
	})
}
