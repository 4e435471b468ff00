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
// Each stream runs in the goroutine of its call and does one thing at a time: take items from the merge, read for it, take in new
// shards, send. Beside it one goroutine receives credits, and a few do its reads. What is new in the category comes from a
// feed (package feed), which all streams of the category share: a thousand streams of a shard cost the engine one subscription,
// one watch for new shards, and one look at the tails when a window waits for it.
//
//	metalog.Subscribe --- new records, tails ----> feed --.
//	metalog.Shards, WatchShards --- shards, time -----^   v
//	metalog.Read <------ what did not fit, history ---- merge --> batch --> send
//	                                                               ^
//	                                        client's credits ------'
//
// The feed never waits for a stream: what there is no room for is dropped, remembered by the shard's tail, and read again when it
// is its turn. So a stream that waits for credits costs its shards one look at each new record, and a shard whose buffer is full
// never keeps another shard's records, or watermarks, from arriving: the merge can't deadlock on memory.
//
// A stream waits for its reads, but not for long (Config.ReadGrace): a shard that does not answer keeps back what the window does not
// allow before it, and nothing else. Meanwhile the stream lives and sends heartbeats. A read has Config.ReadTimeout; a shard that
// can't be read for Config.FailAfter ends the stream, and the client tries another server.
//
// Control messages need no credits. A heartbeat is sent when nothing else was for the time that the client asked for, and tells
// the low watermark and how many pointers wait. A client that misses them reconnects elsewhere.
//
// # Bounds
//
// A stream holds at most Config.StreamBytes of records (4 MiB) and one record, all streams together Config.TotalBytes and one
// record (at most 64 KiB) each; a record that several streams hold is there once and counts for each. Beside that there is the batch that is
// being sent (Config.BatchBytes), and some 300 bytes a shard. The number of streams, of shards in one and of shards in all
// (Config.TotalShards) is bounded; what is over it is refused with REASON_OVERLOADED and a hint when to come
// back, or REASON_TOO_LARGE. The cost of a pointer is O(log shards); an idle shard costs a stream nothing.
//
// # Ordering windows
//
// With a window, records wait until every shard is known to have nothing older than it allows. Of an idle shard the next heartbeat of
// the engine says so (Config.TailHeartbeat), or sooner a look, so it costs a few milliseconds. For a window of 0 the order is total
// (persisted time, shard, LSN): all streams see the same, wherever they begin. That is the window of repeatable categories, whatever a
// stream asks for. Shards that are not known yet could break that; so
// before a record is let out that they could precede, there is a look for shards. This rests on the engine having one clock, see
// package merge.
//
// # Ends
//
// A server that is more loaded than others (Deps.Peers) evicts streams, a tenth of them at a time, so that none ends up more loaded than
// the one it leaves: StreamEvicted with REASON_OVERLOADED. The load is the sum of what streams take of the streams, shards
// and pointers a second that the server may have; clients choose the less loaded one of two servers. Config.MaxStreamAge evicts whatever has
// run for so long.
//
// Close evicts all streams: each is sent StreamEvicted (REASON_SHUTTING_DOWN) with the position of every shard, ended ones
// included. A stream that begins with these as `resume` goes on exactly there. A stream ends with an error when the category is
// deleted (REASON_UNKNOWN_CATEGORY) or the engine fails for longer than Config.FailAfter (REASON_NO_BACKEND).
//
// # Locks
//
// There is one mutex a stream; it is never held across I/O, sends included. A feed's may be held around it, never the other way
// round. The server's mutex is never held together with either.
package readstream
