//go:build race

package testsize

// RaceEnabled reports whether this program is built with the race detector.
const RaceEnabled = true
