package faults

import (
	"slices"
	"testing"
	"time"
)

// TestKill ends processes of a cell with kill -9 under load, lets the others go on without them for a moment, and starts them again.
func TestKill(t *testing.T) {
	t.Parallel()
	t.Run("each in turn", func(t *testing.T) {
		s := begin(t, "kill each")
		for range rounds(t) {
			for _, victim := range drawSome(s, 4, s.c.members) {
				s.kill(victim)
			}
		}
		s.end()
	})
	t.Run("several at once", func(t *testing.T) {
		s := begin(t, "kill several")
		for range 2 * rounds(t) {
			var together []*member
			for _, at := range s.rng.Perm(len(s.c.members))[:min(2+s.rng.IntN(4), len(s.c.members))] {
				together = append(together, s.c.members[at])
			}
			s.kill(together...)
		}
		s.end()
	})
}

// kill ends processes and starts them again.
func (s *scenario) kill(victims ...*member) {
	s.Helper()
	var processes []*member
	what := "the kill of"
	for _, victim := range victims {
		if !slices.Contains(processes, victim) { // a node may stand for several of them
			processes = append(processes, victim)
			what += " " + victim.name
		}
	}
	s.step(what, time.Duration(s.rng.IntN(700))*time.Millisecond, func() {
		for _, process := range processes {
			s.c.kill(process)
		}
	}, func() { s.c.start(processes...) })
}
