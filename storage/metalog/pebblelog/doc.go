// Package pebblelog is the metadata engine of one process: package metalog's Log on a local folder, in Pebble.
//
// # Writing
//
// One goroutine, the committer, owns everything that changes. Calls that change something are queued; the committer takes what
// waits, decides each in turn against the shards' states in memory, puts what it allows into one Pebble batch, syncs the batch
// once, publishes the new states, answers the calls, and wakes subscribers. A single caller waits for one sync; many share one.
// An answer, also a refusal, is given only after the batch that it was decided in is durable, because the refusal may rest on
// what that batch holds.
//
// Each shard has two states in memory: cur, which the committer alone reads and writes and which includes the batch being built,
// and pub, which is durable and which readers see. Pebble shows a batch to iterators before it is synced, so readers take the
// bounds of a shard from pub, and never look beyond them.
//
// # Failing
//
// When a write to the write-ahead log or to Pebble's manifest fails, nobody knows what is on disk. The engine then fails as a
// whole: running and later calls return an error, [Engine.Failed] is closed, nothing is acknowledged any more, and the folder
// stays locked until the process ends. Opening the folder in a new process recovers what was acknowledged. See guard.go for why
// the goroutine that met the error never returns.
//
// # Clock
//
// Records and watermarks take their times from one clock that never goes back, also over restarts: clock.go says how a promise
// made to readers is kept after a crash with a wall clock that went back.
//
// # Locks
//
// In this order, any of them may be left out: life, staging, table.mu, watchers.mu, subscription.mu; tails.mu and clock.mu are
// taken last and hold nothing else. None is held during disk I/O but staging, which covers reads of states that are not cached.
package pebblelog
