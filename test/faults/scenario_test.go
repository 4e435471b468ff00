package faults

import (
	"math/rand/v2"
	"testing"
	"time"

	"scribe/test/netfault"
)

// scenario is a cell under load, and what checks it.
type scenario struct {
	*testing.T
	seed uint64
	rng  *rand.Rand
	c    *cell
	w    *workload
	v    *verifier
	// a follows the load, in scenarios of the read path; nil in others.
	a *audience
}

// begin starts a cell of the usual layout with the standard load.
func begin(t *testing.T, purpose string) *scenario {
	t.Helper()
	s := prepare(t, purpose)
	s.load(startCell(t, s.seed, layout{}))
	return s
}

// prepare makes a scenario whose cell is started by its caller.
func prepare(t *testing.T, purpose string) *scenario {
	t.Helper()
	s := &scenario{T: t, seed: seedOf(t)}
	s.rng = rngOf(s.seed, purpose)
	return s
}

// load begins the standard load on a cell.
func (s *scenario) load(c *cell) {
	s.Helper()
	s.c, s.w = c, newWorkload(c, s.seed)
	s.w.standardLoad(c)
	if len(c.with(partAgent)) > 0 {
		s.w.agentLoad(func() string { return c.url(agent) })
	}
	s.v = newVerifier(c, s.w)
	s.w.start()
	s.w.advance(10)
}

// moment waits for a random time, so that a fault meets the load in any state.
func (s *scenario) moment(most time.Duration) {
	pause(s.T, time.Duration(s.rng.Int64N(int64(most))))
}

// step does something to the cell under load, waits, repairs it, and proves that everybody goes on and that nothing is lost.
func (s *scenario) step(what string, length time.Duration, fault, repair func()) {
	s.Helper()
	s.moment(100 * time.Millisecond)
	fault()
	pause(s.T, length)
	repair()
	s.recovered(what)
}

// recovered proves that everybody goes on and that nothing is lost.
func (s *scenario) recovered(what string) {
	s.Helper()
	began := time.Now()
	s.w.advance(5)
	s.Logf("%s: everybody goes on after %v", what, time.Since(began).Round(time.Millisecond))
	if s.a != nil {
		s.a.caughtUp("after " + what)
		return
	}
	s.v.readable("after " + what)
}

// end waits for the outcome of every write, looks at everything at rest, and ends the cell in an orderly way.
func (s *scenario) end() {
	s.Helper()
	s.w.finish()
	s.v.atRest("in the end")
	if s.a != nil {
		s.a.finish()
	}
	s.c.stopAll()
}

// set sets the mode of the proxies in front of some processes.
func (s *scenario) set(m netfault.Mode, names ...string) func() {
	return func() {
		for _, name := range names {
			s.c.member(name).front.Set(m)
		}
	}
}

// chaos draws faults on the connections of some processes.
func (s *scenario) chaos(ch netfault.Chaos, names ...string) func() {
	return func() {
		for i, name := range names {
			s.c.member(name).front.SetChaos(ch, s.seed+uint64(i)) //nolint:gosec // a few
		}
	}
}

// pauseProcess stops a process with SIGSTOP, resumeProcess lets it go on.
func (s *scenario) pauseProcess(name string) func() {
	return func() { s.c.member(name).proc.Pause() }
}

func (s *scenario) resumeProcess(name string) func() {
	return func() { s.c.member(name).proc.Resume() }
}
