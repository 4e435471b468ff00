//go:build !race

package program

// RaceEnabled says that the program under test is built with the race detector, as the tests are.
const RaceEnabled = false
