// Package producer is the client library for writing messages.
//
//	p, err := producer.New("http://127.0.0.1:7420")
//	if err != nil {
//		return err
//	}
//	defer p.Close(ctx)
//	p.Log("web.access", line)                                             // fire and forget
//	err = p.Write(ctx, "audit", producer.Message{Payload: b, Key: user}) // durable when it returns
//
// [Producer.Log] never waits: it drops and counts messages that the buffer has no space for. [Producer.WriteAsync] returns a
// pending [Result], [Producer.WriteBatchAsync] a pending [Batch]. [Producer.Write] writes a batch and waits; each message
// succeeds or fails on its own. [Producer.WriteAtomic] writes a batch that becomes readable together and contiguous, or not at
// all. Package producer/columns writes Arrow record batches. Calls wait for the acknowledgement level of [WithAck].
// [Producer.Flush] sends the buffered messages; [Producer.Close] also stops the producer and reports messages that it could not
// deliver. [WithMaxBufferedBytes] bounds the memory of all buffers together.
//
// # Order and retries
//
// A message is encoded once, into the open frame of its (category, shard). A frame is sealed when it is full, when its linger
// ends, or when a call waits for it and the shard has no request in flight. Messages of one (category, shard) are sent in the
// order in which they were accepted, in one request at a time, or in several if the server keeps their order: within a window of
// bytes that follows bandwidth and delay. Frames to retry are sent first. Failed requests are repeated with the same bytes, after
// a jittered pause that doubles and is never shorter than the server's retry hint.
//
// Every message has a sequence number under the producer's id and epoch, by which a category with exactly_once delivery
// recognises duplicates, even after a restart: see [Identity]. A frame that may have been stored is never renumbered.
//
// # Errors
//
// Callers branch on sentinels with [errors.Is]. An error that matches [ErrUnknownOutcome] means that the message may be stored.
// Any other error is a definite failure: the message was not stored and will not be. Typed errors carry details: [WriteError],
// [BatchError], [MessageTooLargeError], [UnsentError]. No loss is silent: each accepted message is acknowledged, sampled out,
// failed or buffered ([Stats]). Losses are counted by reason and passed to the hook of [WithOnDrop].
//
// # Locks
//
// A stripe's mutex guards its streams and their frames. Lock order: stripe, then scheduler. No lock is held during a request, a
// wait or a hook. Start reading at sharedCore.sendLoop.
package producer
