// Package feed follows the tails of metadata logs once for all streams of a server. However many streams read a category, its
// shards are subscribed to once, its new shards are watched once, and one look at all of them serves all who wait for one.
//
// # What a member is told
//
// A stream is a [Member] of its category's feed and names the shards that it follows. It is told, in this order for each shard,
// every record that is new, as one copy that all members share, and where the shard ends. What it is not told one by one is the
// progress of idle shards: the feed keeps the watermark of each and tells the least of them as a floor, so ten thousand idle shards cost a
// member one number per heartbeat.
//
// The floor holds for the tails as they were told before it, and for all shards that any member follows. A member that is about to
// take in more shards calls [Member.Hold] first: it is told no floor until it says with [Member.Follow] that it has them. Without
// that, a floor that was computed before anyone followed a shard could be taken to hold for it.
//
// # Looks
//
// A look lists the category's shards with their tails and watermarks. Members ask for one when they hold back a record that an idle
// shard, or one that is not known yet, could precede. It brings the floor up to the engine's clock at once, instead of at the next heartbeat, and
// the horizon: up to which time all shards are known. Looks of one category follow each other with a pause, of at
// least Config.LookPause and ten times what the last one took, longer while they bring nothing, and never longer than a heartbeat:
// waiting streams cost the engine a tenth of its time at most, whatever their number, as long as a look takes less than a tenth of a
// heartbeat.
//
// # Failures
//
// Calls of the engine that fail are repeated with growing pauses; subscriptions go on at the place they had reached, so a connection
// that breaks costs nothing but time. A subscription that tells nothing for ten heartbeats has broken without a word, and is opened again; a
// look at least every Config.LookEvery finds the shards that a watch which has died does not tell of. What fails for longer than Config.FailAfter is told to all members, once for each such time.
//
// # Goroutines, memory, locks
//
// A category that has members costs three goroutines and one for each subscription. A subscription takes a fixed set of shards: those
// that come later get one of their own, which takes smaller ones in, so there are at most about log2(shards) of them. A followed
// shard takes about 200 bytes, and 8 for each of its members. Nothing is queued: members take what they are told, or ignore it and
// read it later.
//
// Listeners are called with the feed's mutex held, so they must not call the feed, nor block. The hub's mutex and a feed's are never held
// together.
package feed
