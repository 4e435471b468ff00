// Package batcher is the role that makes frames durable: it gathers them in memory, compresses them, puts them into the object
// store as blobs, appends pointers to the metadata logs, and answers. Any batcher takes any frame.
//
// # From Submit to the answer
//
//	Submit ── check, charge, copy ──> accumulator ── cut ──> flush ──> compress ──> put ──> append ──> answer
//	                                       │ full payloads                  ^      (parallel)  (in order)
//	                                       '────────────────────────────────'
//
// The accumulator is a plain state machine, free of I/O and time (accumulator.go and class queue.go, with transcripts under testdata). It batches
// frames by physical shard and says when to cut a flush of a retention class: when it is full, when it is old, or when a writer waits
// for its commit and few flushes are running. So an idle batcher commits at once, and a busy one gathers behind what is running. A flush
// that can't take everything takes fair shares of the categories.
//
// A flush becomes a blob and a transaction. A blob has blocks, which are compressed as a whole; a block has one large payload or many
// small ones side by side; a payload is a run of frames of one physical shard, and gets one pointer. Blocks are compressed by a fixed
// number of workers, those of full payloads while the flush still takes frames.
//
// # Order, and who waits for whom
//
// Only a shard has an order. Each log has a queue of the flushes with frames for it (log queues.go), and a flush is appended when it is at
// the head of all its queues. Flushes are uploaded in parallel, and those that share no shard wait for each other in nothing. A flush
// some of whose logs do not get on, because they can't be opened or something before it hangs, is divided after Config.StallAfter:
// the rest commits, in a blob of its own, and new frames of the shards that stand still gather without taking places that others need.
//
// # Places in the logs
//
// A shard's log has one writer at a time, by epoch, so the writer knows the next LSN. Footers of blobs name epoch and LSN of each pointer,
// and a blob is put before it is its flush's turn: places are predicted as if everything before commits. When the turn comes and a
// prediction was wrong, because an earlier flush failed or another writer took the log, the blob is put again, under another id
// and with the right places. The first one is an orphan, which retention removes.
//
// Appends carry the LSN they expect, so an append whose outcome is unknown is repeated as it is. When the repetition is refused,
// for whatever reason, the record at the expected LSN tells whether the first one was applied. Only when the engine does not answer
// for longer than Config.CommitPatience are writers told that the outcome is unknown; then the logs are opened again before they are
// used, which ends what may still be on its way.
//
// The logs of a category that was deleted are sealed, for good, and the local view may know the category by their id for as long as the
// control plane can't be reached. What is on its way to them is refused with REASON_SEALED. The batcher remembers such logs (ended.go), and
// asks the control plane about the category of frames that it would put into them: they go to the category that has the name now.
//
// # Memory
//
// A byte is charged twice until it is compressed, once as compressed afterwards. A category may hold Config.Share times what is free, so
// one alone gets most of the memory and others find room however much it brings; what is beyond is refused with a hint when to come
// again. Frames of a log that is in trouble which others are not in are refused, too: here they would only take memory.
//
// # Guarantees
//
//   - A frame is acknowledged as committed after the pointer that covers it is durable, never before, and as failed only if no
//     reader will ever see it.
//   - The frames of a request, and of one connection's requests one after another, are in the log of their shard in that order. When
//     one of a request is not stored for a reason that may pass, those behind it in the shard are not either: what is stored is a prefix.
//   - Frames of exactly_once and of repeatable categories go to writer slot 0, so each of their logical shards has one log, of one
//     batcher at a time: one that gets frames of it opens it, and the epoch keeps the one before out. Of exactly_once the sequences are appended with the pointers. Frames that
//     were stored are acknowledged as duplicates; the ones beside them are pointed to where they are, without compressing again.
//   - A request's bytes are the caller's when Submit returns. Until then large frames of a writer that waits are compressed from
//     where they are; small ones, and those of a writer that does not wait, are copied (borrowed buffer.go).
//   - Memory stays within Config.MemoryBytes; what does not fit is refused before it is copied, with a hint when to come again.
//   - accepted = committed + duplicate + failed + buffered, for frames, bytes and messages, in every scrape of the metrics.
//
// # Locks
//
// Batcher.mu guards the accumulator and the counts; compressor.mu, arena.mu, logqueue and endedLogs.mu guard their own. None is held while
// another one is taken, nor across I/O.
package batcher
