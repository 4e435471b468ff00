// Package pebblelog is the metadata engine: package metalog's Log on a local folder, in Pebble. With Options.Journal it is one of
// several replicas, see replica.go: the committer's batches become durable in the journal instead of a write-ahead log.
//
// # Writing
//
// One goroutine, the committer, owns all mutable state. Calls that change something are queued. The committer takes the queued
// calls, decides each in turn against the shards' states in memory, puts the permitted changes into one Pebble batch, syncs the
// batch once, publishes the new states, answers the calls, and wakes subscribers. A single caller waits for one sync; many share
// one. Every answer, also a refusal, waits until the batch in which it was decided is durable, because a refusal may depend on
// changes in that batch.
//
// Each shard has two states in memory: cur, which only the committer reads and writes and which includes the batch being built,
// and pub, which is durable and which readers see. Pebble shows a batch to iterators before it is synced, so readers take the
// bounds of a shard from pub, and never read beyond them.
//
// # Failing
//
// After a failed write to the write-ahead log or to Pebble's manifest, the content of the disk is unknown. The engine then fails
// as a whole: running and later calls return an error, [Engine.Failed] is closed, nothing is acknowledged any more, and the
// folder stays locked until the process ends. Opening the folder in a new process recovers everything that was acknowledged.
// guard.go explains why the goroutine that met the error never returns.
//
// # Moves
//
// A shard that was handed over to another engine, or came from one, says so in its state (schema.Moved); moves.go has the rules. An append pays for that
// with one look at a pointer.
//
// # Clock
//
// Records and watermarks take their times from one clock that never goes back, also over restarts. clock.go explains how promises
// to readers hold after a crash with a wall clock that was set back.
//
// # Locks
//
// The lock order is: life, staging, replica.publishing, table.mu, watchers.mu, subscription.mu; any may be skipped. tails.mu, clock.mu and replica.mu are leaves:
// no other lock is taken while one is held. Only staging is held during disk I/O: it covers reads of states that are not cached.
package pebblelog
