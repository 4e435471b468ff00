package metalog_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog/linear"
)

var linearCases = []testCase{
	{name: "append, read, tail and subscriptions are linearizable", many: func(t *testing.T, f logFactory) {
		linearizable(t, f, func(*caseEnv, *linear.Line, *linear.Config) {})
	}},
	{name: "append, read, tail and subscriptions are linearizable over restarts", many: func(t *testing.T, f logFactory) {
		linearizable(t, f, func(e *caseEnv, line *linear.Line, cfg *linear.Config) {
			cfg.Disturbances, cfg.Disturb = 3, func(*rand.Rand) { line.Replace(func() linear.Log { return e.restartLog() }) }
		})
	}},
	{name: "append, read, tail and subscriptions are linearizable over crashes", many: func(t *testing.T, f logFactory) {
		linearizable(t, f, func(e *caseEnv, line *linear.Line, cfg *linear.Config) {
			if canCrash(e.in) {
				cfg.Disturbances, cfg.Disturb = 3, func(*rand.Rand) { line.Break(func() linear.Log { return e.crashLog() }) }
			}
		})
	}},
}

// seedVariable repeats the choices of a run; roundsVariable sets the number of histories.
const (
	seedVariable   = "SCRIBE_TEST_SEED"
	roundsVariable = "SCRIBE_LINEAR_ROUNDS"
)

// number returns the number in an environment variable.
func number(t testing.TB, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// linearizable records calls and answers of concurrent clients, some with short timeouts, while the engine is disturbed, and
// requires an order of the calls that explains them.
func linearizable(t *testing.T, f logFactory, disturb func(*caseEnv, *linear.Line, *linear.Config)) {
	seed, decided := number(t, seedVariable, rand.Uint64()), 0
	for range number(t, roundsVariable, testsize.Test[uint64](5, 5, 2)) {
		e := newEnv(t, f)
		line := linear.NewLine(e.log)
		cfg := linear.Config{Seed: seed}
		disturb(e, line, &cfg)
		h := linear.Run(e.ctx, cfg, line)
		e.closeLog()
		err := h.Check()
		if err != nil && !errors.Is(err, linear.ErrUndecided) {
			t.Fatalf("%s=%d: %v", seedVariable, seed, err)
		}
		if err == nil {
			decided++
		}
		t.Logf("%s=%d: %d operations, %d of them of unknown outcome", seedVariable, seed, h.Len(), h.Unknown())
		seed++
	}
	if decided == 0 {
		t.Error("no history was decided: the machine is too slow for so many calls at once")
	}
}
