// Package controlplane is the role that coordinates the other roles: it keeps the categories of a cell and its membership. It
// implements rpc.ControlService.
//
// # Categories
//
// A category is one key of a strongly consistent store (package kv), changed by conditional transactions; its revision is the
// key's. Get and List read the store, so they see the result of every earlier create or update, whichever process served it. Ids
// come from a persisted counter, in blocks, and are never used twice: a deleted name that is created again gets another id, so
// nothing written under the old id is taken for data of the new one.
//
// Watches are served from memory. One goroutine follows the store and keeps each category's value and its position in the order of
// changes (type categoryFeed). A watch is a position in that order. It has no queue: a slow watch skips states that were
// overwritten, and one that missed forgotten deletions starts over.
//
// # Deleted categories
//
// A frame names its category, and a batcher finds the id in its copy of the categories. With an outdated copy it would put frames
// of a deleted category, or of a new one of that name, into the old logs, and acknowledge them. Therefore the metadata engine is
// told to retire the id. The transaction that deletes a category records the pending retirement, and one goroutine retries it until
// it succeeds, in this process or the next. Until then the name can't be used. Type retireSchedule decides when each is tried.
//
// # Members
//
// Membership is a state machine without I/O (type memberRegistry): leases, slots, deadlines. It lives in the memory of this
// process. Joins are also stored, heartbeats are not: a restarted control plane takes the members for alive for one more lease. Two
// processes should not use one slot at a time (epochs fence the older one if they do), so a slot stays with a member's id while its
// lease lives, and for at least one more TTL; then it goes to another id only when no unused or freed slot is left.
//
// A process that would damage the cell is refused (file identity.go): one whose id a living process has, which is asked at its address, and
// one whose store of payloads is not the one that the first member named.
//
// # Several control planes
//
// Control planes that share a store (Config.Shared) elect one that leads (files lead.go, forward.go; docs/adr/0050). It keeps members and
// pins, retires categories, and plans micro-shards (package provision, provisioning.go; docs/adr/0056); such calls are passed on to it.
// Everything that only it may write is conditional on its term.
//
// # Locks
//
// feed.mu, plans.mu, traffic.mu, members.mu, pins.mu, store.mu, ids.mu and retireSchedule.mu are leaves: while one is held, no other lock is taken and no I/O is
// done. Under leadership.mu only members.mu and pins.mu are taken.
// Joins are serialised by members.turn, a semaphore that is held across the write to the store and acquired before members.mu.
package controlplane
