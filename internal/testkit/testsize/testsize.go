// Package testsize chooses how large a test or a benchmark is, by how it is run.
package testsize

import (
	"flag"
	"testing"
)

// Test returns full for a whole run, short with -short, and raced with -short under the race detector, which makes everything several times
// slower: it looks for races, and a fraction of the histories that a test makes has the same goroutines meet in the same places.
func Test[T any](full, short, raced T) T {
	switch {
	case !testing.Short():
		return full
	case RaceEnabled:
		return raced
	}
	return short
}

// Benchmark returns measured where a benchmark measures, and once where it only has to run. CI runs each once (-benchtime 1x), so that none
// rots: what a benchmark builds beforehand may be small then.
func Benchmark[T any](measured, once T) T {
	if f := flag.Lookup("test.benchtime"); f != nil && f.Value.String() == "1x" {
		return once
	}
	return measured
}
