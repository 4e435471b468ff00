package faults

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"scribe/test/netfault"
	"scribe/test/program"
)

// hostWriters are those who must not notice that the cell is away; the others at the agent wait for it.
var hostWriters = []string{"host-none", "host-spooled"}

// TestAgent does to a host, its agent and the way to the cell what happens to them. The agent has a disk buffer.
func TestAgent(t *testing.T) {
	t.Run("outages of the cell", func(t *testing.T) {
		s := prepare(t, "agent outage")
		s.load(startCell(t, s.seed, layout{}))
		for range rounds(t) {
			s.outage("an outage that the agent is told of", netfault.Refuse, func() {})
			s.outage("an outage that the agent is not told of", netfault.Hang, func() {})
			s.outage("an outage with kills of the agent", netfault.Refuse, func() {
				for range 3 {
					s.restart()
					s.w.advance(10, hostWriters...)
				}
			})
		}
		s.end()
	})
	t.Run("kills of the agent", func(t *testing.T) {
		s := prepare(t, "agent kills")
		s.load(startCell(t, s.seed, layout{}))
		for range 5 * rounds(t) {
			s.kill(s.c.member(agent))
		}
		s.end()
	})
	t.Run("draining", func(t *testing.T) {
		s := begin(t, "agent drain")
		s.cut(netfault.Refuse)
		s.w.advance(10, hostWriters...)
		m := s.c.member(agent)
		s.c.kill(m)
		drain := func() program.Result {
			return program.RunWith(t, program.ServerEnvironment(m.args), nil, append(slices.Clone(m.args), "--drain", "--drain-timeout", "1s")...)
		}
		if r := drain(); r.Code != 6 || !bytes.Contains(r.Stdout, []byte(catHost+"\t")) {
			t.Errorf("--drain while nobody takes anything: exit code %d, want 6, and what is left of %s on standard output:\n%s%s", r.Code, catHost, r.Stdout, r.Stderr)
		}
		s.cut(netfault.Pass)
		if r := drain(); r.Code != 0 || len(r.Stdout) > 0 {
			t.Errorf("--drain: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		s.c.start(m)
		s.recovered("draining the agent")
		s.end()
	})
	t.Run("power losses of the host", func(t *testing.T) {
		s := prepare(t, "agent power")
		disk, dir := s.disk()
		s.load(startCell(t, s.seed, layout{data: map[string]string{agent: filepath.Join(dir, "spool")}}))
		for range 4 * rounds(t) {
			s.powerCycle(disk, s.c.member(agent))
		}
		s.outage("an outage with power losses of the host", netfault.Refuse, func() {
			for range 4 * rounds(t) {
				s.moment(300 * time.Millisecond)
				disk.PowerOff()
				s.c.kill(s.c.member(agent))
				if err := disk.PowerOn(); err != nil {
					t.Fatal(err)
				}
				s.c.start(s.c.member(agent))
				s.w.advance(10, hostWriters...)
			}
		})
		s.end()
	})
	t.Run("a full disk of the host", func(t *testing.T) {
		s := prepare(t, "agent full")
		disk := newSmallDisk(t, 160)
		s.load(startCell(t, s.seed, layout{data: map[string]string{agent: filepath.Join(disk.dir, "spool")}}))
		for range rounds(t) {
			s.full(disk)
			s.cut(netfault.Refuse)
			s.w.advance(10, hostWriters...)
			disk.fill()
			pause(t, outage(t))
			disk.free()
			s.cut(netfault.Pass)
			s.recovered("a full disk during an outage")
		}
		s.end()
	})
}

// cut sets the mode of everything that the agent may send to.
func (s *scenario) cut(m netfault.Mode) {
	s.set(m, writeProxy1, writeProxy2)()
}

// outage takes the cell away from the agent for a while. Those who asked for no more than the agent can give go on meanwhile, at their
// pace; when the cell is back, everything is delivered.
func (s *scenario) outage(what string, m netfault.Mode, meanwhile func()) {
	s.Helper()
	s.step(what, outage(s.T), func() {
		s.cut(m)
		s.w.advance(10, hostWriters...)
		meanwhile()
	}, func() {
		s.w.advance(10, hostWriters...)
		s.cut(netfault.Pass)
	})
}

// restart kills the agent and starts it again.
func (s *scenario) restart() {
	s.Helper()
	s.c.kill(s.c.member(agent))
	s.c.start(s.c.member(agent))
}
