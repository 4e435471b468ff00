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
// A consumer that follows a category during writes and faults has a [Trail]:
//
//	t := h.Follow("orders", "ann", time.Second) // its ordering window
//	t.Record(...)                               // each message; t.Gap for each gap
//	t.Keep()                                    // it saved its checkpoint
//	t.Die()                                     // it restarts from the saved checkpoint
//	report := h.CheckTrail(t, h.Read("orders")) // with a reading of all messages that ever existed
//
// The payload of a message carries its [ID], the writer and the index in the writer's source, so that a reader identifies it without
// the system's help; its bytes are compared by digest. A message may be written several times, when a producer was restarted and
// repeats its source: it is acknowledged when one attempt was, and definitely failed only when all attempts were.
//
// Each [Violation] names one of the invariants of the system's design; the constants of [Kind] say what is checked. A reading may run
// beside writers: what they write after it began may be in it or not.
package history
