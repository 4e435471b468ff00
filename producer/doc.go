// Package producer is the library that applications write messages with.
//
//	p, err := producer.New("http://127.0.0.1:7420")
//	if err != nil {
//		return err
//	}
//	defer p.Close(ctx)
//	p.Log("web.access", line)                                             // fire and forget
//	err = p.Write(ctx, "audit", producer.Message{Payload: b, Key: user}) // durable when it returns
//
// [Producer.Log] never waits; what it can't keep is dropped and counted. [Producer.WriteAsync] returns a pending [Result],
// [Producer.WriteBatchAsync] a pending [Batch]. [Producer.Write] writes a batch and waits; its messages succeed or fail one by one.
// [Producer.WriteAtomic] writes a batch that readers see whole and contiguous, or not at all. Package producer/columns writes Arrow
// record batches. Calls wait for the acknowledgement level of [WithAck]. [Producer.Flush] sends what is buffered, [Producer.Close] also
// ends the producer, and says what it could not deliver. All buffers together stay under [WithMaxBufferedBytes].
//
// # Order and retries
//
// A message is encoded once, into the open frame of its (category, shard). A frame is sealed when it is full, when its linger ends, or when
// somebody waits for it and the shard has no request in flight. Messages of one (category, shard) are sent in the order in which they were
// taken: never does more than one request carry frames of it, and what has to be sent again goes first. Failed requests are repeated with
// the same bytes, after a pause that doubles, is jittered, and is never shorter than a server asked for.
//
// Every message has a sequence number under the producer's id and epoch, by which a category with exactly_once delivery recognises
// repetitions, also across a restart: see [Identity]. A frame that may have been stored is never given new numbers.
//
// # Errors
//
// Callers branch on sentinels with [errors.Is]. A message's error is a definite failure, when the message was not and will not be stored,
// or matches [ErrUnknownOutcome], when it may be. Typed errors have the facts: [WriteError], [BatchError], [MessageTooLargeError],
// [UnsentError]. Nothing is lost silently: accepted messages are acknowledged, sampled out, failed or buffered ([Stats]), and losses are
// counted by reason and told to [WithOnDrop].
//
// # Locks
//
// A stripe's mutex guards its streams and their frames. The scheduler's is taken under it, never the other way round. None is held during
// a request, a wait or a call of a hook. Start reading at sharedCore.sendLoop.
package producer
