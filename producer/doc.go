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
// # Calls
//
// [Producer.Log] takes a message and never waits; what it can't keep is dropped and counted. [Producer.WriteAsync] returns a
// pending [Result], [Producer.WriteBatchAsync] a pending [Batch]. [Producer.Write] writes a batch and waits; the messages of a batch succeed or fail one by one.
// [Producer.WriteAtomic] writes a batch that readers see whole and contiguous, or not at all. Package producer/columns writes
// Arrow record batches. They wait for the acknowledgement level of [WithAck], which [Producer.WithCallAck] changes for single calls.
// [Producer.Flush] sends what is buffered and waits for it, [Producer.Close] also ends the producer, and says what it could not
// deliver.
//
// # From a message to a request
//
// A message is encoded once, into the open frame of its (category, shard): a pooled buffer that grows in steps with the traffic
// of that shard. A frame is sealed when it is full, when its linger ends, or when somebody waits for it and the shard has no
// request under way. While one is under way, messages gather in the open frame: so waiting writers share frames without a delay
// set in advance. One loop puts sealed frames of any categories together into requests; a bounded number of those run at the same
// time. There is no goroutine and no timer for a category, and an idle one takes about 300 bytes.
//
// All buffers together, requests included, stay under [WithMaxBufferedBytes].
//
// # Order and retries
//
// Messages of one (category, shard) are sent in the order in which they were taken: never does more than one request carry frames
// of it, and what has to be sent again goes first. Requests that failed are repeated, with the same bytes, after a pause that
// doubles, is jittered, and is never shorter than a server asked for. A failure of a whole request holds back all of them for that
// pause; a category that is refused by itself waits alone. A server that refuses a request of many frames as a whole gets them
// one by one, so that a faulty frame is found and the others are not lost with it.
//
// Every message has a sequence number in its (category, shard), under the producer's id and epoch. A category with exactly_once
// delivery recognises repetitions by them, also across a restart: see [Identity]. When a frame is given up, its numbers would be
// waited for; the frames behind it get a newer epoch, which also shuts out late copies of what was given up. A frame that may have
// been stored is never given new numbers.
//
// # Errors
//
// Callers branch on sentinels with [errors.Is]. What a message's error promises is the difference between a definite failure, when
// the message was not and will not be stored, and [ErrUnknownOutcome], when it may be. Typed errors have the facts: [WriteError],
// [BatchError], [MessageTooLargeError], [UnsentError].
//
// Nothing is lost silently: in [Stats], accepted messages are acknowledged, sampled out, failed or buffered, and losses are counted
// by reason and told to [WithOnDrop]. Sampled out are messages of a category that is over its quota and keeps one of every so many:
// the call succeeds, [Position] says that the message is not kept, and nothing is sent again.
//
// # Locks
//
// A stripe's mutex guards its streams and their frames; the scheduler's and the memory's are taken under it, never the other way
// round. None is held during a request, a wait or a call of a hook.
package producer
