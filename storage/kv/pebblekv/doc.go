// Package pebblekv is the embedded engine of package kv: a Pebble store in a folder.
//
// One goroutine decides and commits. It takes all queued transactions, checks the conditions of each against the state after the
// earlier ones, and writes them with one sync (group commit). Only then does it publish the new state, by replacing the snapshot
// that Get and Range read from, and answer. So no caller sees anything that a crash could undo.
//
// After a failed write to the disk, the outcome is unknown until the store is opened again: every later Commit fails, while reads
// and watches continue with the state that is known to be durable.
//
// The newest changes are kept in memory for watches. A watch from a revision before the store was opened fails with
// kv.ErrCompacted, as does a watch that is too slow.
//
// docs/format/catalog.md describes the content of the folder.
package pebblekv
