// Package controlplane is the role that the other roles agree through: it keeps the categories of a cell, and knows which
// processes are its members. It implements rpc.ControlService.
//
// # Categories
//
// A category is one key of a strongly consistent store (package kv), changed by conditional transactions; its revision is the
// key's. Get and List read the store, so they see what a create or an update has returned, whichever process served it. Ids come
// from a persisted counter, in blocks, and are given to one category ever: a name that was deleted comes back with another id,
// so nothing that was written under the old one can be mistaken for the new one's.
//
// Watches are served from memory. One goroutine follows the store and keeps, per category, its encoded value and its position in
// the order of changes (type categoryFeed). A watch is a position in that order: it has no queue, a slow one skips states that were
// overwritten meanwhile, and one that missed deletions that are no longer remembered starts over with a reset.
//
// # Deleted categories
//
// A frame names its category, and a batcher finds the id in its copy of the categories. One whose copy is old would put frames of a
// category that was deleted, or of a new one of that name, into the old logs, and acknowledge them. So the metadata engine is told to
// retire the id: its logs take nothing any more, whoever writes. The transaction that deletes a category notes that this is to be done,
// and one goroutine does it, again until it has succeeded, in this process or the next. Until then the name can't be used: a create
// waits for some seconds and is then refused, to be tried again. What is pending is in the store alone; which of it is tried when is
// decided by type retirement, without I/O.
//
// # Members
//
// Membership is a state machine without I/O (type registry): leases, slots, deadlines. It lives in the memory of this process.
// Who joined is also written down, so that a control plane that starts again takes the members for alive for one more lease
// instead of telling everybody that nobody is there, and so that it never gives a live batcher's slot to another.
// Heartbeats are not written.
//
// A slot is a batcher's part of the names of its logs, so two processes should not use one at a time. (Epochs fence the older
// one if they do: a shared slot costs retries, not data.) A slot stays with a member's id while its lease lives; a member that
// leaves gives it back at once; after a lease has expired the slot is kept for the same id for one more TTL at least, and is
// given to another only when no slot is left that was never used or given back.
//
// # Locks
//
// feed.mu, members.mu, ids.mu and retirement.mu are leaves: nothing else is locked, and no I/O is done, while one is held. Joins are
// serialised by members.turn, a semaphore that is held across the write to the store and before members.mu.
package controlplane
