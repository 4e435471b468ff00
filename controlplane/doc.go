// Package controlplane is the role that coordinates the other roles: it keeps the categories of a cell and its membership. It
// implements rpc.ControlService.
//
// # Categories
//
// A category is one key of a strongly consistent store (package kv), changed by conditional transactions; its revision is the
// key's. Get and List read the store, so they see the result of every earlier create or update, whichever process served it. Ids
// come from a persisted counter, in blocks, and are never used twice: a deleted name that is created again gets another id, so
// nothing written under the old id can be mistaken for data of the new one.
//
// Watches are served from memory. One goroutine follows the store and keeps, per category, its encoded value and its position in
// the order of changes (type categoryFeed). A watch is a position in that order. It has no queue: a slow watch skips states that
// were overwritten in the meantime, and a watch that missed forgotten deletions starts over with a reset.
//
// # Deleted categories
//
// A frame names its category, and a batcher finds the id in its copy of the categories. With an outdated copy it would put frames
// of a deleted category, or of a new one of that name, into the old logs, and acknowledge them. Therefore the metadata engine is
// told to retire the id: no writer can append to its logs any more. The transaction that deletes a category records the pending
// retirement, and one goroutine retries it until it succeeds, in this process or the next. Until then the name can't be used: a
// create waits for some seconds and is then refused with a hint to retry. Only the store knows the pending retirements; type
// retireSchedule decides when each is tried, without I/O.
//
// # Members
//
// Membership is a state machine without I/O (type memberRegistry): leases, slots, deadlines. It lives in the memory of this
// process. Joins are also stored. A restarted control plane therefore takes the members for alive for one more lease, instead of
// reporting an empty cell, and never gives a live batcher's slot to another member. Heartbeats are not stored.
//
// A slot is a batcher's part of the names of its logs, so two processes should not use one at a time. (Epochs fence the older one
// if they do: a shared slot costs retries, not data.) A slot stays with a member's id while its lease lives. A member that leaves
// frees it at once. After a lease has expired, the slot is kept for the same id for at least one more TTL, and is given to
// another id only when no unused or freed slot is left.
//
// # Locks
//
// feed.mu, members.mu, ids.mu and retireSchedule.mu are leaves: while one is held, no other lock is taken and no I/O is done.
// Joins are serialised by members.turn, a semaphore that is held across the write to the store and acquired before members.mu.
package controlplane
