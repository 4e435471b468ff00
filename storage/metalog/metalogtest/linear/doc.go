// Package linear records what concurrent clients of a metadata engine do and are told, and has Porcupine look for one order of their
// calls that explains all of it. It proves what metalog.Log promises of each log, over crashes and lost answers:
//
//   - append, read and tail are linearizable (invariant 5 of the system's design);
//   - LSNs are dense, unique and increasing, the record at an LSN and its persisted time never change, persisted times never
//     decrease nor fall below a watermark that was told, and all readers and subscribers agree (invariant 3);
//   - after an epoch was given out nothing is appended with an older one (invariant 7);
//   - what was refused for certain is never visible, what was acknowledged always is (invariants 1 and 2).
//
// A history:
//
//	line := linear.NewLine(engine)             // only where the engine is broken on the way
//	h := linear.Run(ctx, linear.Config{Seed: seed, Disturb: func(*rand.Rand) { line.Break(reopen) }, Disturbances: 3}, line)
//	err := h.Check(time.Minute)
//
// # What is recorded
//
// Each call is an operation with the moments at which it was made and answered. Logs are independent of each other, so each is
// checked by itself: that keeps histories small, and checking takes milliseconds. A transaction of two logs is an operation of each;
// that it is whole is checked beside the model.
//
// A call that was not answered, or with an error that is not definite, has an unknown outcome: it took effect at any moment since it
// was made, or never. Where the engine was crashed and opened again meanwhile, at a moment before that: [Line] tells. A crash
// is no operation. It changes nothing that was promised, so the model does not have it.
//
// What a subscription brings is an operation too: at some moment since the subscription began the log's tail was where it says, and
// what it brought was there. Its own rules (no record twice, none left out, no watermark that goes back) are checked beside.
//
// # What makes it bite
//
// The tests of this package run it on a log that lies, in each way that the rules forbid, and want each lie found. A run with the same seed
// makes the same choices; how calls interleave is up to the machine. Only tests may import this package.
package linear
