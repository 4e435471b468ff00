package testsize

import (
	"flag"
	"testing"
)

// setFlag sets a flag of package testing for the rest of a test.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	before := flag.Lookup(name).Value.String()
	t.Cleanup(func() { _ = flag.Set(name, before) })
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
}

func TestTest(t *testing.T) {
	short := "short"
	if RaceEnabled {
		short = "raced"
	}
	for flag, want := range map[string]string{"false": "full", "true": short} {
		setFlag(t, "test.short", flag)
		if got := Test("full", "short", "raced"); got != want {
			t.Errorf("-short=%s: %s, want %s", flag, got, want)
		}
	}
}

func TestBenchmark(t *testing.T) {
	for benchtime, want := range map[string]string{"1x": "once", "2x": "measured", "1s": "measured"} {
		setFlag(t, "test.benchtime", benchtime)
		if got := Benchmark("measured", "once"); got != want {
			t.Errorf("-benchtime %s: %s, want %s", benchtime, got, want)
		}
	}
}
