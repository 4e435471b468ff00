// Package finish evaluates a query over payloads, whatever form they arrive in. It is the last step of every query and makes its
// result correct.
//
// A payload comes in one of three forms, with the same rows in each:
//
//   - raw, as the producers' frames: it is transcoded here ([Finisher.Payload]);
//   - as a read proxy's view made for exactly this query: it has the rows for which the WHERE is true, as far as a read proxy can
//     evaluate it ([Finisher.View], exact);
//   - as a view that also serves other queries and has more columns and rows than needed ([Finisher.View]).
//
// None of them has the columns _persisted, _shard and _offset, because only a reader has the pointer. This package adds them, and
// evaluates the terms of the WHERE that name them.
//
// A [Finisher] is immutable and safe for concurrent use. It does no I/O and starts no goroutines. The state of a query between
// payloads, its groups, is a [Grouping].
package finish
