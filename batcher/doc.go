// Package batcher is the role that makes frames durable: it gathers them in memory, compresses them, puts them into the object
// store as blobs, appends pointers to the metadata logs, and answers. Any batcher takes any frame.
//
// # From Submit to the answer
//
//	Submit ── check, charge, copy ──> accumulator ── cut ──> flush ──> compress ──> put ──> append ──> answer
//	                                       │ full payloads                  ^      (parallel)  (in order)
//	                                       '────────────────────────────────'
//
// The accumulator is a plain state machine, free of I/O and time (accumulator.go, with transcripts under testdata). It groups
// frames by physical shard in the open flush and says when to cut it: when it is full, when it is old, or when a writer waits for
// its commit and few flushes are running. So an idle batcher commits at once, and a busy one gathers behind what is running.
//
// A flush is one transaction. It has a blob for each retention class; a blob has blocks, which are compressed as a whole; a block
// has one large payload or many small ones side by side; a payload is a run of frames of one physical shard, and gets one pointer.
// Blocks are compressed by a fixed number of workers, those of full payloads while the flush still takes frames.
//
// Flushes are uploaded in parallel and committed in the order in which they were cut, so the frames of a shard keep their order.
//
// # Places in the logs
//
// A shard's log has one writer at a time, by epoch, so the writer knows the next LSN (ledger.go). Footers of blobs name epoch and
// LSN of each pointer, and a blob is put before it is its flush's turn: places are predicted as if every earlier flush commits.
// When its turn comes and a prediction was wrong, because an earlier flush failed or another writer took the log, the blob is
// put again, under another id and with the right places. The first one is an orphan, which retention removes.
//
// Appends carry the LSN they expect, so an append whose outcome is unknown is repeated as it is. When the repetition is refused,
// for whatever reason, the record at the expected LSN tells whether the first one was applied. Only when the engine does not answer
// for longer than Config.CommitPatience are writers told that the outcome is unknown; then the logs are opened again before they are
// used, which ends what may still be on its way.
//
// # Guarantees
//
//   - A frame is acknowledged as committed after the pointer that covers it is durable, never before, and as failed only if no
//     reader will ever see it.
//   - The frames of a request, and of one connection's requests one after another, are in the log of their shard in that order,
//     but for those that failed.
//   - Frames of exactly_once categories go to writer slot 0, and their sequences are appended with the pointers. Frames that
//     were stored are acknowledged as duplicates; the ones beside them are pointed to where they are, without compressing again.
//   - Memory stays within Config.MemoryBytes; what does not fit is refused before it is copied, with a hint when to come again.
//   - accepted = committed + duplicate + failed + buffered, for frames, bytes and messages, in every scrape of the metrics.
//
// # Locks
//
// Batcher.mu guards the accumulator and the counts; compressor.mu, arena.mu and ledger.mu guard their own. None is held while
// another one is taken, nor across I/O.
package batcher
