// Package batcher is the role that makes frames durable: it gathers them in memory, compresses them, puts them into the object store as
// blobs, appends pointers to the metadata logs, and answers. Any batcher takes any frame.
//
//	Submit ── check, charge, copy ──> accumulator ── cut ──> flush ──> compress ──> put ──> append ──> answer
//	                                       │ full payloads                  ^      (parallel)  (in order)
//	                                       '────────────────────────────────'
//
// # What a byte is on its way
//
//	frame         comes in a request, and is never looked into
//	frame span    neighbouring frames of one request for one log; what the accumulator is given
//	payload       spans of one log, up to Config.PayloadBytes: what is compressed and read as a whole
//	log batch     the payloads of one log that wait for a flush, or that a flush has taken
//	block         one large payload or many small ones, compressed together
//	flush         the log batches that are cut at once; becomes one blob and one transaction, unless it is divided
//	flush part    a flush, or log batches divided off from one; has its share of the blocks
//	pointer range what one pointer refers to: a whole payload, unless frames in it were refused
//
// # Where to start reading
//
//   - request.go: Submit. A request is taken apart, charged, and handed over as spans.
//   - accumulator.go, classqueue.go: the state machine that gathers and cuts, free of I/O and time. Transcripts: testdata/accumulator.
//   - flushpart.go: what a part does next, step by step; store.go puts its blob, commit.go appends its pointers. Transcripts: testdata/part.
//   - package logqueue: the turns of parts in the queues of logs, and the positions that pointers get.
//   - package arena: the memory of frames until they are compressed.
//
// # Guarantees
//
//   - A frame is acknowledged as committed after the pointer that covers it is durable, and as failed only if no reader will ever see it.
//   - The frames of a request, and of one connection's requests one after another, are in their log in that order. When one of a request
//     is not stored for a reason that may pass, later ones of the log are not either: what is stored is a prefix.
//   - Frames of exactly_once and of repeatable categories go to writer slot 0, so that each logical shard has one log.
//   - accepted = committed + duplicate + failed + buffered, for frames, bytes and messages, in every scrape of the metrics.
//
// Batcher.mu guards the accumulator and the counts. No lock is held while another one is taken, nor across I/O. DESIGN.md has the reasons
// and what was rejected.
package batcher
