//go:build !race

package program

// RaceEnabled reports whether the program under test is built with the race detector, as the tests are.
const RaceEnabled = false
