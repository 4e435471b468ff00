// Package metalogtest is the acceptance suite of metalog.Log: [Run] puts any engine, or any client of one, through every sentence
// of the contract.
//
// An engine's test gives a [Factory]. What an engine can't do (restart, crash, take a clock, damage what it stores) it leaves out
// of its [Instance], and the cases that need it are not run.
//
// The suite waits for signals, never for time to pass. Cases that can fail by hanging end with the context of the environment.
package metalogtest
