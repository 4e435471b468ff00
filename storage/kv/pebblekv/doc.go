// Package pebblekv is the embedded engine of package kv: a Pebble store in a folder.
//
// One goroutine decides and commits. It takes all transactions that wait, checks the conditions of each against the state that
// the ones before it leave, and writes the lot with one sync (group commit). Only then does it publish the new state, by
// replacing the snapshot that Get and Range read from, and answer. So nobody sees what a crash could take back.
//
// When a write to the disk fails the outcome is unknown and stays so until the store is opened again: from then on every Commit
// fails, while reads and watches go on with what is known to be durable.
//
// The newest changes are kept in memory for watches. A watch from a revision before the store was opened fails with
// kv.ErrCompacted, as does one that falls too far behind.
//
// docs/format/catalog.md describes what is in the folder.
package pebblekv
