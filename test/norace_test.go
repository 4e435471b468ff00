//go:build !race

package test

// raceEnabled says that the program under test is built with the race detector, as the tests are.
const raceEnabled = false
