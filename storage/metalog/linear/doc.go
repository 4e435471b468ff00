// Package linear records the calls and answers of concurrent clients of a metadata engine, and lets Porcupine look for one order
// of the calls that explains all answers. It checks metalog.Log's promises for each log, across crashes and lost answers:
//
//   - append, read and tail are linearizable (invariant 5 of the system's design);
//   - LSNs are dense, unique and increasing, the record at an LSN and its persisted time never change, persisted times never
//     decrease nor fall below a watermark that was sent, and all readers and subscribers agree (invariant 3);
//   - after an epoch was given out, nothing is appended with an older one (invariant 7);
//   - definitely refused records are never visible, acknowledged ones always are (invariants 1 and 2).
//
// A history:
//
//	line := linear.NewLine(engine)             // only if the engine crashes during the run
//	h := linear.Run(ctx, linear.Config{Seed: seed, Disturb: func(*rand.Rand) { line.Break(reopen) }, Disturbances: 3}, line)
//	err := h.Check(time.Minute)
//
// # What is recorded
//
// Each call is an operation with the moments of its request and its answer. Logs are independent of each other, so each is
// checked by itself: that keeps histories small, and checking takes milliseconds. A transaction on two logs is an operation of
// each; its atomicity is checked beside the model.
//
// A call without an answer, or with an error that is not definite, has an unknown outcome: it took effect at any moment since the
// call, or never. If the engine crashed and was opened again meanwhile, then before that moment: [Line] says so. A crash is not
// an operation: it changes no promise, so the model does not have it.
//
// An update of a subscription is an operation too: at some moment since the subscription began, the log's tail was the one sent,
// and the records sent existed. The subscription's own rules (no record repeated or skipped, no watermark that goes back) are
// checked beside the model.
//
// # How it is tested
//
// The tests of this package run it on a log that violates the rules, in each way that they forbid, and require that each
// violation is found. A run with the same seed makes the same choices; the interleaving of calls depends on the machine. Only
// tests may import this package.
package linear
