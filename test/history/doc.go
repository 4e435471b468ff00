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
//   - places (3): the places of a log, (LSN, index), are not dense;
//   - changed (3): a place holds something else than when it was read before, or nothing;
//   - wrong bytes (4): a payload is not one that was written there;
//   - torn batch (14): an atomic batch is not whole, or not contiguous in the stream.
//
// A reading may run beside writers: what they do after it began may be in it or not.
package history
