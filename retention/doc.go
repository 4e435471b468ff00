// Package retention is the role that deletes expired data: it trims the logs of categories by age, and deletes blobs to which no
// pointer refers. [New] starts a [Keeper]. [Audit] compares all pointers with all blobs and deletes nothing.
//
// # Safety
//
// A blob's footer names the position, shard and LSN, of each pointer that its writer may append, and the writer appends pointers at no
// other position. So a blob is dead when none of these positions has a pointer to it or can get one later. The metadata engine rules out
// later pointers: it refuses appends that refer to blobs older than its boundary. The order of steps is always:
//
//  1. Advance the boundary, durably, to Config.Grace before now.
//  2. Examine only blobs older than the boundary: read their footers, then the positions in the logs.
//  3. Delete dead blobs after Config.Linger.
//
// A dead blob never becomes alive again. So a keeper that is paused between two steps, a killed one, and two concurrent ones delete no
// live blob. A writer that takes longer than the grace gets metalog.ErrStaleBlob and stores its blob again under a new id.
//
// # Where to start reading
//
//   - retention.go: Keeper runs terms; a term (leaseTerm, lease.go) is the time for which this keeper holds the lease.
//   - trim_logs.go: logTrimmer trims categories and erases deleted ones; trimSchedule decides when; trim_sequenced.go treats sequenced ones;
//     remove_logs.go removes empty logs, as far as cell_memory.go knows that nobody minds.
//   - sweep.go: blobSweeper advances the boundary, examines slices of blobs (examine.go, classify.go) and deletes dead blobs;
//     sliceSchedule decides when.
//   - claim.go: claims in the blob store halt retention when logs and blobs do not belong together.
//
// DESIGN.md explains trimming, the schedule, the lease and the claims; docs/format/retention.md describes the persisted state.
//
// # Locks
//
// leaseTerm.mu guards the state that the loops of a term share; leaseTerm.saving, a semaphore that is held across calls of the engine,
// serialises its appends and comes before it. Keeper.mu is a leaf.
package retention
