// Package feed follows the tails of metadata logs once for all streams of a server. However many streams read a category, its
// shards are subscribed to once, its new shards are watched once, and one look serves all streams that asked for one.
//
// # What a member is told
//
// A stream is a [Member] of its category's feed and names the shards that it follows. For each shard it is told, in order, every
// new record, as one copy that all members share, and the tail. It is not told the progress of each idle shard: the feed keeps
// the watermark of each and reports their minimum as a floor, so ten thousand idle shards cost a member one number per heartbeat.
//
// The floor holds for the tails as they were told before it, and for all shards that any member follows. A member that is about
// to add shards calls [Member.Hold] first: it is told no floor until it has called [Member.Follow]. Otherwise a floor that was
// computed before anyone followed a shard could be taken to cover that shard.
//
// # Looks
//
// A look lists the category's shards with their tails and watermarks. Members ask for one when they hold back a record that an
// idle or unknown shard could precede. A look raises the floor to the engine's clock at once, instead of at the next heartbeat,
// and brings the horizon: the time up to which all shards are known. Looks of one category are separated by a pause of at least
// Config.LookPause and ten times the duration of the last one; it grows while they bring nothing, and never exceeds a heartbeat.
// So waiting streams, whatever their number, cost the engine at most a tenth of its time, as long as a look takes less than a
// tenth of a heartbeat.
//
// # Failures
//
// Failed calls of the engine are retried with growing pauses. Subscriptions resume at their last position, so a broken connection
// costs nothing but time. A subscription that is silent for ten heartbeats counts as broken, and is opened again. A look at least
// every Config.LookEvery finds the shards that a silently broken watch does not report. What it does not find was removed: members
// that come later are not told of it, until it appears again. A failure that lasts longer than Config.FailAfter is reported to all
// members, once per such period.
//
// # Goroutines, memory, locks
//
// A category with members costs three goroutines and one for each subscription. A subscription covers a fixed set of shards. New
// shards get a new subscription, which absorbs smaller ones, so there are at most about log2(shards) of them. A followed shard
// takes about 200 bytes, plus 8 for each of its members. Nothing is queued: members either take what they are told, or ignore it
// and read it later.
//
// Listeners are called with the feed's mutex held, so they must neither call the feed nor block. The hub's mutex and a feed's
// mutex are never held together.
package feed
