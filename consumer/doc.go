// Package consumer is the library that applications read a category with.
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
// [Consumer.Records] yields messages in the order of their persisted times, as far as the category or [WithWindow] asks for it. One
// iteration runs at a time; its goroutines have ended when the loop is left, and the next one continues after the last message. With
// [WithUntilEnd] an iteration ends where the category ended when it began; otherwise it waits for more. The bytes of a message are not
// copied: they must not be changed, and are reused after the next step.
//
// [Consumer.Checkpoint] is the exact position after the last message, as portable text. Store it after handling a message, best in one
// transaction with the results, and begin with [Checkpoint]: nothing is repeated and nothing skipped. [SaveCheckpoint] and
// [LoadCheckpoint] keep it in a file. [Consumer.Watermark], [Consumer.Lag] and [Consumer.Backlog] say how far the iteration has come.
//
// A [Group] is a member of a consumer group: members share a category, and the group keeps the positions. In a sequenced category,
// [Consumer.SequencedBatches] yields the same batches however often they are read. Package columns reads by columns: SQL queries,
// filters and Arrow batches.
//
// A server that is unavailable is tried again, for as long as [WithRetryTimeout] allows; what it refuses for good ends the iteration.
// Messages that will not come are a *[GapError] in their place. Damaged data is never delivered: the iteration ends with a
// *[DamageError], or with [DamageSkip] goes on after a gap.
//
// Start reading at iterate.go (the loop), session.go (the stream of pointers), queue.go and fetch.go (payloads), position.go
// (where it stands), group.go (membership). DESIGN.md says how these work together. Lock order: the consumer's mutex, then the
// queue's; neither is held during a call of a service or of the caller.
package consumer
