// Package history records what producers were told, and proves that what readers see is consistent with it.
//
//	h := history.New()
//	h.Category("orders", history.Guarantees{ExactlyOnce: true, NoGivingUp: true})
//	a := h.Begin("orders", shard, history.Message{ID: id, Payload: b}) // before the call that writes
//	a.Acked(0, history.Committed)                                      // or Failed, or nothing: the outcome is unknown
//
//	r := h.Read("orders")  // before the reading begins
//	r.Record(...)          // each message, in the order of delivery
//	report := h.Check(r, history.Spooled)
//
// A message carries its [ID], the writer and the index in the writer's source, in its payload, so that a reader can tell it without
// the system's help; its bytes are compared by digest. A message may be written several times, when a producer was restarted and
// repeats its source: it is acknowledged when one attempt was, and failed for certain only when all were.
//
// A consumer that follows a category while it is written, and while everything fails, has a [Trail]:
//
//	t := h.Follow("orders", "ann", time.Second) // its ordering window
//	t.Record(...)                               // each message, t.Gap where it was told of one
//	t.Keep()                                    // it kept its checkpoint
//	t.Die()                                     // it is started again from what it kept
//	report := h.CheckTrail(t, h.Read("orders")) // with a reading of all that was ever there
//
// # What is checked
//
// Each [Violation] names one of the invariants of the system's design:
//
//   - lost (1): a message that was acknowledged before the reading began, at a level that has to last, is not there;
//   - visible failure (2): a message is there of which every attempt failed for certain;
//   - duplicate (2): a message is there twice in a category that is exactly_once;
//   - gap (2): in such a category, whose writers never give up, a message is missing before a later one of its writer;
//   - reordered (2): in such a category a writer's messages are not in its order; in any other one, a message has an older persisted
//     time than one that was acknowledged as committed before it was first written;
//   - positions (3): the positions in a log, (LSN, index), are not dense;
//   - changed (3): a position holds something else than when it was read before, or nothing;
//   - wrong bytes (4): a payload is not one that was written there;
//   - torn batch (14): an atomic batch is not whole, or not contiguous in the stream.
//
// Of trails:
//
//   - repeated, skipped (12): over all its lives a consumer gets each message once, from its checkpoints; what does not come it is told of;
//   - disagreement (12): readers of a repeatable category get it in one order ([History.Agree]);
//   - out of window (13): a message is older than one that came before it, by more than the consumer's window;
//   - taken while owed (9): what is gone had not expired, under any retention that the category had ([History.Retain]);
//   - wrong gap (9): a gap is not where the consumer stands;
//   - unresolved (8): a pointer that was not trimmed stands for nothing;
//   - changed (3), wrong bytes (4), torn batch (14): as above, compared with what others saw.
//
// A reading may run beside writers: what they do after it began may be in it or not.
package history
