// Package consumer is the client library for reading a category.
//
//	c, err := consumer.New("http://127.0.0.1:7420", "web.access", consumer.WithStart(consumer.Earliest()))
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	for rec, err := range c.Records(ctx) {
//		if err != nil {
//			return err // after a *GapError the iteration may go on
//		}
//		use(rec.Payload)
//	}
//
// [Consumer.Records] yields messages ordered by persisted time, within the ordering window of the category or of [WithWindow].
// One iteration runs at a time. Its goroutines have ended when the loop is left, and the next iteration continues after the last
// message. With [WithUntilEnd] an iteration ends at the end that the category had when the iteration began; otherwise it waits
// for new messages. Messages are not copied: their bytes must not be changed, and are reused after the next step.
//
// [Consumer.Checkpoint] returns the exact position after the last message, as portable text. Store it after handling a message,
// best in the same transaction as the results, and start from it with [Checkpoint]: no message is repeated or skipped.
// [SaveCheckpoint] and [LoadCheckpoint] keep it in a file. [Consumer.Watermark], [Consumer.Lag] and [Consumer.Backlog] report the
// progress of the iteration.
//
// A [Group] is a member of a consumer group: members share a category, and the group stores the positions. In a sequenced
// category, [Consumer.SequencedBatches] yields the same batches however often they are read. Package columns reads columns: SQL
// queries, filters and Arrow batches.
//
// The consumer retries while a server is unavailable, for as long as [WithRetryTimeout] allows. A permanent refusal ends the
// iteration. A *[GapError] stands in place of messages that will not come. Damaged data is never delivered: the iteration ends
// with a *[DamageError], or, with [DamageSkip], yields a gap and continues.
//
// Start reading at iterate.go (the loop), session.go (the stream of pointers), queue.go and fetch.go (payloads), share.go
// (positions), group.go (membership). DESIGN.md explains how they work together. Lock order: the consumer's mutex, then the
// queue's. Neither is held during a service call or while the caller's code runs.
package consumer
