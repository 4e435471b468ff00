// Package group is the part of the control plane that shares categories among the members of consumer groups. It implements
// rpc.GroupService.
//
// # A group
//
// A group divides its category into buckets of pointers (package bucket) and gives each to one member. A member reads the pointers of
// its buckets in one stream, and commits how far it has come in each of them: to the message, per physical shard and bucket. So the
// number of shards bounds nothing: a category of one shard keeps as many members busy as there are buckets. With sharing by shards
// a bucket has whole logical shards, so that messages of one are dealt with by one member at a time and in order.
//
// # Members come and go
//
// Who has what is decided by [Group], a state machine without I/O. When somebody joins, leaves or falls silent, only as many buckets
// change hands as must: the others are read on meanwhile. A bucket that goes from one living member to another is first asked back:
// its owner stops, commits, and releases it with a heartbeat; only then is it granted to the other one, which begins where the commit
// was. An owner that does not give it back in time (its revoke timeout), or that is silent for its TTL, loses it.
//
// Each change has a generation, and each bucket the one in which it was granted. A commit names the member's epoch and the generation
// that it knows; it is refused when any of its buckets is not that member's, or was granted after that. So whatever a member that was
// taken for dead commits later changes nothing: it is told so, with REASON_LEASE_EXPIRED or REASON_STALE_GENERATION.
//
// # State
//
// Everything that counts is in the control plane's store (package kv), and changes by transactions that are conditional on what was read.
// Any number of coordinators may serve the same groups; losing one loses nothing. A group is one value. Its positions are in others
// beside it, [chunks] at most: a commit touches those of the shards in which something has moved, together with a condition on
// the group's revision, so that it can't happen beside a change of hands. A reset writes a new set of positions and then
// switches the group over to it.
//
// Who is alive is not written at every heartbeat. A coordinator remembers who has spoken to it, and writes for each group, five times in
// a TTL, that these live; and it counts the time of a member from the last sign of life that it knows, by its own clock ([Liveness]).
// Coordinators need no common clock. Members take themselves for members for three quarters of the TTL after a heartbeat, and pause then.
// For that to be safe a heartbeat is answered only when what is written of the member is younger than a quarter of the TTL.
//
// # What it costs
//
// A group without members costs nothing but its values. One goroutine looks at those that have some, a few times in a TTL. There is no
// timer and no goroutine for a group. Positions of idle shards take some 6 bytes, of busy ones some 4 more for each bucket that is
// ahead of the last one: in a group of 256 buckets about a kilobyte a shard at most, however far apart its buckets are.
//
// # Locks
//
// Coordinator.mu is a leaf: no I/O while it is held. Changes of a group in this process take turns (a semaphore, held over the calls of
// the store), so that they do not refuse each other; between processes the conditions of the transactions decide.
package group
