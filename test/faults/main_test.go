package faults

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"scribe/test/program"
)

func TestMain(m *testing.M) {
	os.Exit(program.Suite{Raced: []string{"^TestNetwork$", "^TestAgent$/^outages"}, LeftOut: leftOut}.Main(m))
}

// leftOut are the tests that are not run where cells are secured.
var leftOut = map[string]string{}

// TestLeftOut: what is left out where cells are secured exists, and is left out for a reason.
func TestLeftOut(t *testing.T) { program.CheckLeftOut(t, leftOut) }

// seedVariable repeats a run's choices, roundsVariable repeats the faults of each scenario, outageVariable says how long cuts and
// outages last.
const (
	seedVariable   = "SCRIBE_TEST_SEED"
	roundsVariable = "SCRIBE_FAULT_ROUNDS"
	outageVariable = "SCRIBE_FAULT_OUTAGE"
	ciVariable     = "SCRIBE_CI"
)

// seedOf is the seed of a scenario. It is printed; the variable repeats it, whatever else runs.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	return seed
}

// rngOf is a source of randomness for one purpose: its draws do not depend on what others draw.
func rngOf(seed uint64, purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(seed, h.Sum64())) //nolint:gosec // reproducible on purpose
}

// rounds is how often a scenario repeats its faults.
func rounds(t *testing.T) int {
	t.Helper()
	s := os.Getenv(roundsVariable)
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s: %q is not a number of rounds", roundsVariable, s)
	}
	return n
}

// drawSome returns the faults of a round: n that the seed draws, or all where rounds were asked for. Every run has seeds of the simulator
// (test/sim) as well, which meet each of these faults in every state; here it is enough that real processes meet some.
func drawSome[T any](s *scenario, n int, of []T) []T {
	s.Helper()
	drawn := make([]T, 0, len(of))
	for _, at := range s.rng.Perm(len(of)) {
		drawn = append(drawn, of[at])
	}
	if os.Getenv(roundsVariable) != "" {
		return drawn
	}
	return drawn[:min(n, len(drawn))]
}

// outage is how long cuts and outages last.
func outage(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv(outageVariable)
	if s == "" {
		return 2 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		t.Fatalf("%s: %q is not a time", outageVariable, s)
	}
	return d
}

// missing skips a scenario that this machine can't run; where everything has to be run, it fails.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv(ciVariable) != "" {
		t.Fatalf("this machine lacks %s", what)
	}
	t.Skipf("this machine lacks %s", what)
}

// pause lets the load go on for a moment.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(program.WaitLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in vain waited until %s", what)
		}
	}
}
