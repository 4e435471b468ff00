// Package logqueue keeps a batcher's position in each log that it appends to, and the order in which parts of flushes take their turns.
//
// A [Part] has an [Entry] in the queue of each of its logs. It is appended, in one transaction, once all of its entries are at the heads of
// their queues: so the frames of a log keep their order, and parts that share no log do not wait for each other. A part's life:
//
//	Claim ── Inspect, until Status.AtHead ──> append ──> Finish
//	            │ some entries can't get on            ^
//	            '── Reassign: they are a part of their own, which goes the same way
//
// [Queues.Inspect] says how a part stands and which logs to open, and gives every entry the position that it has, or will have if
// everything before it commits. The caller opens logs and appends, and reports what came of it: [Queues.Opened], [Queues.OpenFailed],
// [Queues.AppendRefused] and the like.
//
// The package does no I/O and reads no clock. ../testdata/part has transcripts of it together with the steps that the batcher takes.
package logqueue
