// Package logqueue keeps a batcher's position in each log that it appends to, and the order in which flush parts take their
// turns.
//
// A [Part] has an [Entry] in the queue of each of its logs. It is appended, in one transaction, once all of its entries are at the heads of
// their queues: so the frames of a log keep their order, and parts that share no log do not wait for each other. A part's life:
//
//	Claim ── Inspect, until Status.AtHead ──> append ──> Finish
//	            │ some entries can't get on            ^
//	            '── Reassign: they are a part of their own, which goes the same way
//
// [Queues.Inspect] returns the state of a part and the logs to open, and gives every entry its position, or the one that it will
// have if everything before it commits. The caller opens logs and appends, and reports the outcomes: [Queues.Opened],
// [Queues.OpenFailed], [Queues.AppendRefused] and so on.
//
// The package does no I/O and reads no clock. ../testdata/part has transcripts that show it together with the batcher's steps.
package logqueue
