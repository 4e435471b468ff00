package metalogtest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Instance is an engine under test. A nil function means that the engine lacks that ability.
type Instance struct {
	// Log is the engine. The suite closes it.
	Log metalog.Log
	// Clock is the engine's clock.
	Clock *Clock
	// Restart closes the engine and opens its stored state again.
	Restart func(tb testing.TB) metalog.Log
	// Crash ends the engine without warning, drops unsynced data, and opens the rest. Running calls may end in any way.
	Crash func(tb testing.TB) metalog.Log
	// Damage changes a byte of a stored record's value, and restarts the engine.
	Damage func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log
}

// Factory makes an engine without any shards. It registers cleanups with tb.Cleanup.
type Factory func(tb testing.TB) *Instance

// Clock is a wall clock that a test sets. Each reading is one microsecond after the one before. It is safe for concurrent use.
type Clock struct{ now atomic.Int64 }

// NewClock returns a clock at a fixed time.
func NewClock() *Clock {
	c := &Clock{}
	c.now.Store(1_750_000_000_000_000)
	return c
}

// Now returns the time in Unix microseconds.
func (c *Clock) Now() int64 { return c.now.Add(1) }

// Advance moves the clock, also backward.
func (c *Clock) Advance(d time.Duration) { c.now.Add(d.Microseconds()) }

// Run runs the suite on the engines that f makes.
func Run(t *testing.T, f Factory) {
	t.Run("transcripts", func(t *testing.T) { runTranscripts(t, f) })
	for _, group := range [][]testCase{
		openCases, appendCases, fenceCases, readCases, seekCases, trimCases, retireCases, annotateCases, subscribeCases,
		watermarkCases, watchCases, limitCases, endCases, durableCases, linearCases, modelCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.runCase(t, f) })
		}
	}
}

type testCase struct {
	name string
	// needs reports whether an instance can run the case; nil means that every instance can.
	needs func(*Instance) bool
	test  func(*caseEnv)
	// many gets the factory itself.
	many func(*testing.T, Factory)
}

// caseTimeout ends a case that hangs. It is far above the duration of any case.
const caseTimeout = 2 * time.Minute

func (c testCase) runCase(t *testing.T, f Factory) {
	t.Helper()
	if c.many != nil {
		c.many(t, f)
		return
	}
	e := newEnv(t, f)
	if c.needs == nil || c.needs(e.in) {
		c.test(e)
	}
	e.closeLog()
}

// caseEnv is the environment of a case.
type caseEnv struct {
	testing.TB
	in  *Instance
	log metalog.Log
	ctx context.Context
}

func newEnv(tb testing.TB, f Factory) *caseEnv {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), caseTimeout)
	tb.Cleanup(cancel)
	in := f(tb)
	return &caseEnv{TB: tb, in: in, log: in.Log, ctx: ctx}
}

func (e *caseEnv) closeLog() {
	e.Helper()
	if err := e.log.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
}

func (e *caseEnv) restartLog() metalog.Log {
	e.Helper()
	e.log = e.in.Restart(e)
	return e.log
}

func (e *caseEnv) crashLog() metalog.Log {
	e.Helper()
	e.log = e.in.Crash(e)
	return e.log
}

func canRestart(in *Instance) bool { return in.Restart != nil }
func canCrash(in *Instance) bool   { return in.Crash != nil }
func canDamage(in *Instance) bool  { return in.Damage != nil }
func hasClock(in *Instance) bool   { return in.Clock != nil }

func withCrash(a, b func(*Instance) bool) func(*Instance) bool {
	return func(in *Instance) bool { return a(in) && b(in) }
}
