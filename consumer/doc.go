// Package consumer is the library that applications read a category with.
//
//	c, err := consumer.New("http://127.0.0.1:7420", "web.access", consumer.WithStart(consumer.Earliest()))
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	for rec, err := range c.Records(ctx) {
//		if err != nil {
//			return err // a *GapError may be passed over: the iteration goes on after it
//		}
//		use(rec.Payload)
//	}
//
// # Iterating
//
// [Consumer.Records] yields messages, in the order of the times at which they were
// persisted, as far as the category or [WithWindow] asks for it. One iteration runs at a time; what it started has ended when its
// loop is left, and the next one continues behind the last message that was yielded. With [WithUntilEnd] an iteration ends where
// the category ended when it began; else it waits for more.
//
// A message's bytes point into the decompressed payload that it came in: they are not copied, must not be changed, and are used
// again after the next step.
//
// # Places
//
// [Consumer.Checkpoint] is the exact place behind the last message as a portable text: for each physical shard the pointer to read
// next and how many of its messages were delivered. Keep it when a message has been dealt with, and begin with [Checkpoint]:
// nothing is repeated, nothing skipped, and shards that appeared in between are read from their beginning. That holds in the middle of an
// atomic batch, too ([Record.BatchLeft] says where one ends), and in a repeatable category what follows comes in the order in which it
// would have come. Best the text is kept in one transaction with the results: then each message has its effect once, whatever
// dies. [SaveCheckpoint] and [LoadCheckpoint] keep it in a file.
//
// [Consumer.Watermark] and [Consumer.Lag] say how far the iteration has come in time, [Consumer.Backlog] in pointers, messages and bytes.
//
// # One order
//
// Messages of a sequenced category come in the one order that all readers see, and have a number ([Record.Offset]).
// [Consumer.SequencedBatches] yields them in batches of a size of the reader's choice, with identifiers, that are the same however often they are
// read: what a program needs to process each message exactly once. The directory examples/exactlyonce has one.
//
// # Groups
//
// A [Group] is a member of a consumer group: members share a category, each message goes to one of them, and the group keeps the places. The
// category is divided in buckets of pointers; a member reads those that it has in one stream, which leaves out the others', and commits
// how far it is in each, to the message. When members come and go only as many buckets move as must, between two messages, and after they
// were committed: see [Group.Commit], [WithAutoCommit], [WithOnRevoked].
//
// Two goroutines keep a membership. One speaks to the coordinator; the other takes buckets in and gives them back, for which it takes turns with
// the loop: the caller's code and its callbacks never run at the same time. A heartbeat waits for neither. A member that can't reach the
// coordinator for three quarters of its TTL pauses, since others may have its buckets by then; what it commits of those is refused with
// [ErrFenced].
//
// # What runs behind the loop
//
// A stream from the read stream service brings pointers in the merged order. It is given credits, in pointers and in bytes of the
// payloads that they stand for, which come back to it as payloads are consumed; so both ends hold a bounded amount, and a slow
// loop slows down nothing but its own stream. Payloads are fetched by their pointers from the read proxy, several together when
// they are small, several fetches side by side, and decompressed there; [WithPrefetchBytes] bounds the memory of all that is ahead of the
// loop. The
// loop takes payloads in the stream's order and decodes their messages.
//
// # When things go wrong
//
// A stream that breaks, falls silent or is sent elsewhere is opened again from the exact place up to which its pointers were
// received, after a jittered pause, and if there are several servers at another one than the one that failed; so is a fetch. Every pointer's place must follow the one before in its shard: one that was seen is passed
// over, and a hole of which nothing was said makes the consumer open the stream again. Failed fetches are repeated. This goes on
// for as long as [WithRetryTimeout] allows, by default for ever; what a server refuses for good ends the iteration at once.
//
// Messages that will not come are a *[GapError] in their place, with the reason and as far as they are known the counts:
//
//   - [GapTrimmed]: retention was faster. Also when the pointer had arrived and its object was deleted before it was fetched: a fetch that
//     finds no object asks the stream whether the log was trimmed, which always comes first.
//   - [GapDropped]: an agent or a producer had to drop them before they were stored, and has said so in the category
//     (docs/format/loss.md). No position is lost; the gap stands where the report does.
//   - [GapDamaged], [GapMissing]: only with [DamageSkip], see below.
//
// Damage is found by checksums, from the producer's over the messages of a frame to the one over a payload on its way, and by comparing
// category, shard and counts with the pointer. Bytes that do not pass are never delivered: the iteration ends with a *[DamageError] that
// names the place, or with [DamageSkip] goes on behind a gap.
//
// # Locks
//
// The consumer's mutex guards its places, the queue's what was received. The queue's may be taken under the consumer's, not the
// other way round; neither is held during a call of a service or of the caller.
package consumer
