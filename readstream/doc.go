// Package readstream is the role that gives consumers one stream of pointers for a category, out of the many metadata logs
// ("physical shards") that its messages are spread over. It serves rpc.ReadStreamService.
//
// # A stream
//
// The client opens with a StreamStart. The server finds the category's shards, answers with StreamOpened (each shard's first LSN
// and its tail at that moment), and sends pointers while the client's credits last, merged by persisted time. Which pointer comes
// next is decided in package merge, a state machine without I/O; this package does the I/O that it asks for.
//
// Where shards begin: those named in `resume` at the position named, others by `start_at`; without a `start_at` at the end if
// nothing was named, else at the beginning, since a shard that a checkpoint does not know is one that appeared after it. Positions
// of logical shards that were not asked for are ignored. A shard that appears while the stream runs begins at its first record,
// whatever `start_at` says: what is in it was persisted after the stream was opened. A start time in the future is refused.
//
// The stream says what it can't bring: a StreamGap for positions that retention trimmed (REASON_TRIMMED) and for records that are
// damaged in the engine or hold no pointer (REASON_CORRUPT), and goes on behind it. A pointer that a newer version wrote is no
// damage; the stream ends with an error that says to upgrade. shard_ended follows the last pointer of a sealed shard.
//
// # Flow
//
// Each stream runs in the goroutine of its call and does one thing at a time: take items from the merge, read for it, look for
// new shards, send. Beside it, one goroutine receives credits, one watches for shards, and a few follow the tails (subscriptions
// take a fixed set of shards, so shards that appear get one of their own, and sets of like size are put together: there are at
// most about log2(shards) of them).
//
//	metalog.Subscribe --- new records, watermarks, tails --->.
//	metalog.Read <------ what did not fit, history --------- merge --> batch --> send
//	metalog.WatchShards --- shards that appear ------------->'           ^
//	                                              client's credits ------'
//
// A subscription's callback never blocks: what there is no room for is dropped, remembered by the shard's tail, and read again
// when it is its turn. So a stream that waits for credits costs its shards one look at each new record, and a shard whose buffer
// is full never keeps another shard's records, or watermarks, from arriving: the merge can't deadlock on memory.
//
// Control messages need no credits. A heartbeat is sent when nothing else was for the time that the client asked for, and tells
// the low watermark and how many pointers wait. While the stream waits for the engine there are no heartbeats: a client
// that misses them reconnects elsewhere.
//
// # Bounds
//
// A stream holds at most Config.StreamBytes of records (4 MiB) and one record, all streams together Config.TotalBytes and one
// record (at most 64 KiB) each; beside that the batch that is being sent (Config.BatchBytes), and some 250 bytes a shard. The
// number of streams and of shards in one is bounded; what is over it is refused with REASON_OVERLOADED and a hint when to come
// back, or REASON_TOO_LARGE. The cost of a pointer is O(log shards).
//
// # Ordering windows
//
// With a window, records wait until every shard is known to have nothing older than it allows, so what an idle shard costs is one
// heartbeat of the engine, and for a window of 0 the order is total (persisted time, shard, LSN): all streams see the same. Shards
// that are not known yet could break that; so before a record is let out that they could precede, the server looks for shards.
// This rests on the engine having one clock, see package merge.
//
// # Ends
//
// Close evicts all streams: each is sent StreamEvicted (REASON_SHUTTING_DOWN) with the position of every shard, ended ones
// included. A stream that begins with these as `resume` goes on exactly there. A stream ends with an error when the category is
// deleted (REASON_UNKNOWN_CATEGORY) or the engine fails for longer than Config.FailAfter (REASON_NO_BACKEND).
//
// # Locks
//
// There is one mutex a stream; it is never held across I/O, sends included. The server's mutex is never held together with it.
package readstream
