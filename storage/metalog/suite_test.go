package metalog_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testclock"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
)

// logInstance is an engine under test.
type logInstance struct {
	// log is the engine. The suite closes it.
	log metalog.Log
	// clock is the engine's clock.
	clock *testclock.Clock
	// restart closes the engine and opens its stored state again.
	restart func(tb testing.TB) metalog.Log
	// crash ends the engine without warning, drops unsynced data, and opens the rest. Running calls may end in any way. If it or damage
	// is nil, the cases that need it do nothing.
	crash func(tb testing.TB) metalog.Log
	// damage changes a byte of a stored record's value, and restarts the engine.
	damage func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log
	// lags says that calls may be answered by a replica that knows the watermark of a while ago: it may be below one that another
	// replica told.
	lags bool
}

// logFactory makes an engine without any shards. It registers cleanups with tb.Cleanup.
type logFactory func(tb testing.TB) *logInstance

// runSuite runs the acceptance suite of metalog.Log on the engines that f makes: the whole contract, for an engine or for a client of one.
//
// What a single caller sees is in transcripts (testdata); what needs concurrent callers, large amounts or a clock is in Go. The suite
// waits for signals, never for time to pass. Cases that can fail by hanging end with the context of the environment.
func runSuite(t *testing.T, f logFactory) {
	t.Run("transcripts", func(t *testing.T) { runTranscripts(t, f) })
	for _, group := range [][]testCase{
		openCases, appendCases, fenceCases, readCases, seekCases, trimCases, retireCases, removeCases, annotateCases, subscribeCases,
		watermarkCases, watchCases, limitCases, endCases, durableCases, linearCases, modelCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.runCase(t, f) })
		}
	}
}

// runMost is runSuite, but in the short run under the race detector only what a single caller sees, and concurrent ones do in any order: for
// engines that differ little from one that runs all of it.
func runMost(t *testing.T, f logFactory) {
	if !testsize.Test(false, false, true) {
		runSuite(t, f)
		return
	}
	t.Run("transcripts", func(t *testing.T) { runTranscripts(t, f) })
	for _, c := range linearCases {
		t.Run(c.name, func(t *testing.T) { c.runCase(t, f) })
	}
}

type testCase struct {
	name string
	// needs reports whether an instance can run the case; nil means that every instance can.
	needs func(*logInstance) bool
	test  func(*caseEnv)
	// many gets the factory itself.
	many func(*testing.T, logFactory)
}

// caseTimeout ends a case that hangs. It is far above the duration of any case.
const caseTimeout = 2 * time.Minute

func (c testCase) runCase(t *testing.T, f logFactory) {
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
	in  *logInstance
	log metalog.Log
	ctx context.Context
}

func newEnv(tb testing.TB, f logFactory) *caseEnv {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), caseTimeout)
	tb.Cleanup(cancel)
	in := f(tb)
	return &caseEnv{TB: tb, in: in, log: in.log, ctx: ctx}
}

func (e *caseEnv) closeLog() {
	e.Helper()
	if err := e.log.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
}

func (e *caseEnv) restartLog() metalog.Log {
	e.Helper()
	e.log = e.in.restart(e)
	return e.log
}

func (e *caseEnv) crashLog() metalog.Log {
	e.Helper()
	e.log = e.in.crash(e)
	return e.log
}

// awaitReader waits until reads answer: a replica that applies a large entry on a busy machine refuses them for a while.
func (e *caseEnv) awaitReader(shard record.ShardID) {
	e.Helper()
	for {
		_, err := e.log.Tail(e.ctx, []record.ShardID{shard})
		if err == nil {
			return
		}
		if e.ctx.Err() != nil {
			e.Fatalf("reads did not answer within %v: %v", caseTimeout, err)
		}
		runtime.Gosched()
	}
}

// isNotRaced leaves a case out of the short run under the race detector: it moves many bytes, and has no more goroutines than others.
func isNotRaced(*logInstance) bool { return testsize.Test(true, true, false) }

func canCrash(in *logInstance) bool  { return in.crash != nil }
func canDamage(in *logInstance) bool { return in.damage != nil }
