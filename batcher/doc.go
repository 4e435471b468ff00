// Package batcher is the role that makes frames durable: it accumulates them in memory, compresses them, puts them into the
// object store as blobs, appends pointers to the metadata logs, and answers the writers. Every batcher accepts frames of every
// category.
//
//	Submit ── check, charge, copy ──> accumulator ── cut ──> flush ──> compress ──> put ──> append ──> answer
//	                                       │ full payloads                  ^      (parallel)  (in order)
//	                                       '────────────────────────────────'
//
// # The stages of a byte
//
//	frame         arrives in a request; its body is never decoded
//	frame span    neighbouring frames of one request for one log; the unit of accumulation
//	payload       spans of one log, up to Config.PayloadBytes; the unit of reading
//	log batch     the payloads of one log, pending or in a flush
//	block         one large payload, or many small ones compressed together
//	flush         the log batches cut at once; becomes one blob and one transaction, unless it is divided
//	flush part    a flush, or log batches divided off from one, with their share of the blocks
//	pointer range the range of one pointer: a whole payload, unless frames in it were refused
//
// # Where to start reading
//
//   - request.go: Submit splits a request into spans, charges memory for them, and passes them to the accumulator.
//   - accumulator.go, classqueue.go: the state machine that accumulates spans and cuts flushes. It does no I/O and
//     reads no clock. Transcripts: testdata/accumulator.
//   - flushpart.go: the steps of a part; store.go puts its blob, commit.go appends its pointers. Transcripts: testdata/part.
//   - push.go: hands the blocks that readers want to read proxies, beside the put.
//   - package logqueue: the per-log queues of parts, and the positions of pointers.
//   - package arena: the memory of frames until they are compressed.
//
// # Guarantees
//
//   - A frame is acknowledged as committed after the pointer that covers it is durable, and as failed only if no reader will ever see it.
//   - The frames of a request, and of consecutive requests of one connection, keep that order in their log. If one frame of a request
//     is not stored for a transient reason, later ones of the log are not stored either: the stored frames are a prefix.
//   - Frames of exactly_once and of repeatable categories go to writer slot 0, so that each logical shard has one log.
//   - accepted = committed + duplicate + failed + buffered, for frames, bytes and messages, in every scrape of the metrics.
//
// Batcher.mu guards the accumulator and the counts. Locks do not nest, and none is held during I/O. DESIGN.md has the reasons and
// the rejected alternatives.
package batcher
