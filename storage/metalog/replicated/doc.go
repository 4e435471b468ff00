// Package replicated makes one metalog.Log of the replicas of a metadata engine, of which each is a metalog.Log itself: a client, or
// the engine in this process.
//
// Reads go to the first replica that is not away, which is the local one where there is one; then to the others. Every replica
// answers them linearizably. Writes go to the leader: a replica that does not lead refuses with [metalog.ErrNotLeader], which names
// it. While nobody knows the leader, replicas are asked in turn, with pauses, for as long as [Options].Patience allows. Only refusals
// that are definite are followed by another attempt. A write with an unknown outcome is returned as such and never repeated here.
//
// A subscription moves to another replica when its own one fails. The new one may be behind. Package replicated keeps the position,
// tail and watermark of each shard, and leaves out what the subscriber has seen: nothing goes back, comes twice or is missing.
//
// A leader that is not listed, since it was added later, is reached by [Options].Connect. Reads and subscriptions stay with the listed ones.
package replicated
