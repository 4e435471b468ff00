// Package history records the outcomes of writes that producers were told, and checks that what readers see is consistent with them.
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
// The payload of a message carries its [ID], the writer and the index in the writer's source, so that a reader identifies it without
// the system's help; its bytes are compared by digest. A message may be written several times, when a producer was restarted and
// repeats its source: it is acknowledged when one attempt was, and definitely failed only when all attempts were.
//
// A consumer that follows a category during writes and faults has a [Trail]:
//
//	t := h.Follow("orders", "ann", time.Second) // its ordering window
//	t.Record(...)                               // each message; t.Gap for each gap
//	t.Keep()                                    // it saved its checkpoint
//	t.Die()                                     // it restarts from the saved checkpoint
//	report := h.CheckTrail(t, h.Read("orders")) // with a reading of all messages that ever existed
//
// # What is checked
//
// Each [Violation] names one of the invariants of the system's design:
//
//   - lost (1): a message that was acknowledged before the reading began, at a level that must last, is missing;
//   - visible failure (2): a message is readable although every attempt to write it definitely failed;
//   - duplicate (2): a message occurs twice in an exactly_once category;
//   - gap (2): in such a category, if its writers never give up, a message is missing before a later one of its writer;
//   - reordered (2): in such a category a writer's messages are not in its order; in any other one, a message has an older persisted
//     time than one that was acknowledged as committed before it was first written;
//   - positions (3): the positions in a log, (LSN, index), are not dense;
//   - changed (3): a position holds another message than when it was read before, or none;
//   - wrong bytes (4): a payload is not one that was written there;
//   - torn batch (14): an atomic batch is not whole, or not contiguous in the stream.
//
// Of trails:
//
//   - repeated, skipped (12): over all its lives a consumer got a message twice, or missed one without a gap;
//   - disagreement (12): two readers of a repeatable category got different orders ([History.Agree]);
//   - out of window (13): a message is older than a previous one by more than the consumer's window;
//   - taken while owed (9): a missing message had not expired under any retention that the category had ([History.Retain]);
//   - wrong gap (9): a gap does not begin at the consumer's position;
//   - unresolved (8): a pointer that was not trimmed refers to no payload;
//   - changed (3), wrong bytes (4), torn batch (14): as above, compared with what other readers saw.
//
// A reading may run beside writers: what they write after it began may be in it or not.
package history
