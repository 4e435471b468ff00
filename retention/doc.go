// Package retention is the role that ends what retention has ended: it trims the logs of categories by time, and deletes blobs that
// no pointer refers to any more or ever did.
//
// # What is deleted
//
// A blob's footer names the place, shard and LSN, of each pointer that its writer was going to append, and a writer appends a pointer
// there and nowhere else. So a blob is dead when at none of these places there is, or can ever be, a pointer to it. "Can ever be" is
// settled by the boundary: the metadata engine refuses appends that refer to a blob whose id is older. The order is always:
//
//  1. The boundary is advanced, durably, to Config.Grace before now.
//  2. Only blobs with ids below the boundary are examined: their footers are read, and then the places in the logs.
//  3. What is dead is deleted, after Config.Linger.
//
// Nobody can bring a dead blob back, so a decision never becomes wrong: a keeper that is paused between any two of these steps, or
// two that work at the same time, or one that was killed, delete nothing that is alive. A writer that outlives the grace is refused
// with metalog.ErrStaleBlob and puts its blob again under a new id.
//
// One rule covers all: what has expired, orphans of failed flushes, what deleted categories left, and retention that was changed. Retention
// decides only what is trimmed. A blob holds categories of one class of retention so that it does not outlive most of what it holds.
//
// # What is trimmed
//
// Records of a category whose persisted time is more than its retention ago. Time is the engine's clock, which also gives persisted
// times, or this process's, whichever is behind: one clock that jumps ahead trims nothing early. Retention is read from the control
// plane, not from a copy, moments before each trim: raised retention keeps everything that had not expired before.
//
// Readers hold back the trimming of what they are about to read with pins, up to Config.PinLimit beyond the retention. Then the pin is
// revoked: the log is trimmed, and the reader's stream says which positions it lost.
//
// A deleted category is retired and erased in the engine at once; pins do not count.
//
// # When blobs are looked at
//
// Blob ids carry their time, and keys sort by it, so the blobs of a class fall into slices of time that can be listed by a prefix. A
// slice is examined once when the boundary has passed it, which finds orphans, and then when the first of its blobs will have expired.
// Type schedule decides this, without I/O. Once in Config.SweepInterval everything is listed, to find blobs that arrived late: a put
// whose answer was lost may be carried out much later.
//
// # One at a time
//
// Any number of processes may have the role; one leads. It holds a lease, which is nothing but the shard [LeaseShard] of the metadata
// engine: who leads opened it last, and appends its state every third of Config.LeaseTTL; who finds no new record for the length of a lease
// opens it, and the epoch keeps the one before from appending. The state says how far the keeper has come (docs/format/retention.md),
// so a successor goes on there. The lease saves work. It is not what safety rests on, see above.
//
// # Guards
//
// Deleting by absence is dangerous when the logs are not the ones that belong to the blobs: another cell's, empty ones, or an old
// backup. So the keeper keeps a claim in the blob store: an object that names its cell and the boundary. It collects nothing while
// there is a claim of another cell, or one with a boundary that the engine has not reached, until Config.Adopt names that claim. A blob
// of a writer's epoch that the engine never gave out is kept, and counted.
//
// # Locks
//
// term.mu guards what the loops of a term share, and term.saving serialises its appends; mu is a leaf. Neither is held across calls of
// the stores but saving, which is there for that.
package retention
