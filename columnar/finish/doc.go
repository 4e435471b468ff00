// Package finish evaluates a query over the payloads that a reader was given, whatever was done to them before: the last step of every
// query, and the one that makes its answer right.
//
// A payload comes in one of three forms, and gives the same rows in each:
//
//   - raw, as the producers' frames: it is transcoded here ([Finisher.Payload]);
//   - as a view of a read proxy that was made for exactly this query: the rows are those of its WHERE, as far as a read proxy can know
//     ([Finisher.View], exact);
//   - as a view that serves other queries, too, and has more columns and more rows than are needed ([Finisher.View]).
//
// The columns _persisted, _shard and _offset are in none of them, for only a reader has the pointer: they are made here, and terms of the
// WHERE that name them are evaluated here alone.
//
// A [Finisher] is immutable and may be used by many goroutines; it does no I/O and starts none. What a query keeps from one payload to the
// next, its groups, is a [Grouping].
package finish
