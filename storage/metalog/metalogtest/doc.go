// Package metalogtest is the acceptance suite of metalog.Log: [Run] checks any engine, or any client of one, against the whole
// contract.
//
// An engine's test supplies a [Factory]. Abilities that an engine lacks (restart, crash, a settable clock, damage) are nil in its
// [Instance], and the cases that need them are skipped.
//
// What a single caller sees is in transcripts (testdata); what needs concurrent callers, large amounts or a clock is in Go.
//
// The suite waits for signals, never for time to pass. Cases that can fail by hanging end with the context of the environment.
package metalogtest
