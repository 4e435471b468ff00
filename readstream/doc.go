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
// nothing was named, else at the beginning, since a shard that a checkpoint does not know is one that appeared after it: at the
// first record that it ever had, so that what was trimmed of it since is a gap. Positions of logical shards that were not asked for are
// ignored. A shard that appears while the stream runs begins at its first record,
// whatever `start_at` says: what is in it was persisted after the stream was opened. A start time in the future is refused.
//
// The stream says what it can't bring: a StreamGap for positions that retention trimmed (REASON_TRIMMED) and for records that are
// damaged in the engine or hold no pointer (REASON_CORRUPT), and goes on behind it. A pointer that a newer version wrote is no
// damage; the stream ends with an error that says to upgrade. shard_ended follows the last pointer of a sealed shard.
//
// # Flow
//
// Each stream runs in the goroutine of its call and does one thing at a time: take items from the merge, read for it, take in new
// shards, send. Beside it one goroutine receives credits, and a few make its calls of the engine. What is new in the category comes from a
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
// allow before it, and nothing else, however many such shards there are: reads that are late do not take the places of others. The same
// holds for shards that appear and whose tails are not told. Meanwhile the stream lives and sends heartbeats. A read has
// Config.ReadTimeout; a shard that can't be read for Config.FailAfter ends the stream, and the client tries another server. A stream
// that is opened while a shard does not answer knows nothing of its next record, so every window waits for it.
//
// The first read of a shard is small, each further one twice as large as far as there is room: a stream sends soon, and reads history
// in large steps.
//
// A pointer that was taken waits for others that are being read, so that they go out together, for Config.BatchLinger at most: what is read
// may bring nothing to send for a long time, where a filter or buckets leave most of a history out.
//
// Control messages need no credits. A heartbeat is sent when nothing else was for the time that the client asked for, and tells
// the low watermark and how many pointers wait. A client that misses them reconnects elsewhere.
//
// # Bounds
//
// A stream holds at most Config.StreamBytes of records (8 MiB) and one record, all streams together Config.TotalBytes and one
// record (at most 64 KiB) each; a record that several streams hold is there once and counts for each. When three quarters of the total
// are taken, each stream is held to an equal share of its half; what is over that is given back, first by streams whose clients take nothing,
// and read again when it is its turn (pressure.go). So slow clients cost others nothing but reads.
//
// Beside that there is the batch that is being sent (Config.BatchBytes), 64 notes of what was sent and not paid back (owed.go), with a filter
// some 150 bytes for each record held that will be left out, and some 300 bytes a shard. The number of streams, of shards in one and of shards in all
// (Config.TotalShards) is bounded; a stream whose new shards bring the sum over it is sent away, and what is over it when it opens is refused with REASON_OVERLOADED and a hint when to come
// back, or REASON_TOO_LARGE. The cost of a pointer is O(log shards); an idle shard costs a stream nothing.
//
// # Ordering windows
//
// With a window, records wait until every shard is known to have nothing older than it allows. Of an idle shard the next heartbeat of
// the engine says so (Config.TailHeartbeat), or sooner a look, so it costs a few milliseconds. For a window of 0 the order is total
// (persisted time, shard, LSN): all streams see the same, wherever they begin. That is the window of repeatable categories, whatever a
// stream asks for. Shards that are not known yet could break that; so before a record is let out that they could precede, there
// is a look for shards. This rests on the engine having one clock, see package merge. A window is kept over evictions, too: what was not
// handed out before one is not older than the window allows.
//
// # Retention
//
// Needs tells from which persisted time on streams need records: what was not sent, and what was sent and whose credits have not come back,
// since its payload may not have been fetched. The process tells the control plane, and the collector waits for a while
// (docs/adr/0022-readers-pins.md). What is trimmed all the same is a gap.
//
// # Buckets
//
// A member of a consumer group names the buckets of pointers that it reads (package internal/format/bucket). Others' pointers pass through the
// merge, since they carry time on, and are left out behind it, without credits; shards that have none of its pointers are not followed.
//
// # Filters
//
// A stream with a query leaves out pointers of payloads that can't match it: what was learned of payloads is read together with history
// (prune.go) and judged when a read ends. Such pointers pass through the merge, too, and the client is told of them in runs, with how many
// entries come before each: positions, watermarks and windows are as without a filter. What can't be read of it within a second, or
// Config.ReadGrace where that is longer, is as if it was not known, and so is what the tail brings: nobody waits for either.
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
