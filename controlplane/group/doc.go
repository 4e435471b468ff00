// Package group shares categories among the members of consumer groups. It is a part of the control plane and implements
// rpc.GroupService. Start with the transcripts in testdata/assignment, then [Group], then [Coordinator].
//
// # A group
//
// A group divides its category into buckets of pointers (package bucket) and gives each to one member. A member reads the
// pointers of its buckets in one stream, and commits its position in each: to the message, per physical shard and bucket. So even
// a category with one shard keeps as many members busy as there are buckets. With sharing by shards, a bucket has whole logical
// shards, so that one member at a time processes their messages, in order.
//
// [Group] assigns buckets, without I/O. When a member joins, leaves or expires, as few buckets change hands as possible. A bucket
// that moves from one live member to another is first revoked: its owner stops, commits, and releases it with a heartbeat; then
// the target begins at that commit. An owner that does not release it within its revoke timeout, or is silent for its TTL, loses
// it.
//
// Each change has a generation, and each bucket the one in which it was granted. A commit names the member's epoch and the
// generation that the member knows. It is refused if any of its buckets belongs to another member, or was granted later
// (REASON_LEASE_EXPIRED, REASON_STALE_GENERATION). So commits of an expired member have no effect.
//
// # State
//
// All state is in the control plane's store (package kv), and changes by transactions that are conditional on the state read. Any
// number of coordinators may serve the same groups. A group is one value; its positions are in at most [chunks] further values. A
// commit writes those of the shards that moved, conditional on the group's revision. A reset writes a new set of positions, and
// then switches the group to it.
//
// Heartbeats are not stored one by one: see [Liveness]. Members take their lease for valid for three quarters of the TTL after a
// heartbeat, so a heartbeat is answered only when the member's stored beat is younger than a quarter of the TTL.
//
// # Locks
//
// Coordinator.mu is a leaf: no I/O while it is held. Changes of a group in this process take turns, with a semaphore that is held
// during calls of the store; between processes the conditions of the transactions decide.
package group
