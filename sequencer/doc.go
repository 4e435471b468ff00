// Package sequencer is the role that gives a category one order for all readers, whatever their window. It merges the logs of a
// category that was created with `--repeatable sequenced` into one more log, the sequenced log, which read streams then serve.
//
// # Flow
//
// For each of its categories a sequencer opens a stream from the read stream service over the logs that messages are written to
// ("sources"), merged strictly by persisted time. It appends what the stream brings, in order, to the sequenced log: pointers,
// with their source LSN and the number of their first message, and gaps. While one append runs, the next one gathers.
//
//	read stream (strict, unsequenced) --> streamChecker --> stepInbox --> appendLedger --> metalog.Append: sequenced log + positions
//	          ^                                                 |                                |
//	          '-------------------- credits --------------------'<-------------------------------'
//
// The same transaction appends to the log of positions how far each source was sequenced (internal/format/sequenced defines both
// formats). So however a sequencer ends, the next one continues exactly after what was committed: no pointer is sequenced twice
// or omitted. An append with an unknown outcome needs no special care: the positions show it.
//
// # Exactly one
//
// A term begins by opening both logs. That raises their epochs, so that no other sequencer can append; only then the positions
// are read and the stream is opened. A sequencer that does not know that it was replaced has its next append refused, and stops.
// So the metadata engine alone decides which process sequences, and two that both try do no harm.
//
// The membership decides which process tries: each category is assigned to the live member with the highest rendezvous weight.
// Members that join or leave move only their share. Processes with the role but without categories stand by. Two processes with
// different views of the membership may both try; the fenced one waits before it retries, see [Config.Contest].
//
// # Retention
//
// Retention trims sources no further than they were sequenced, within limits, and trims the sequenced log by the sources' times,
// before the sources: so the blobs of the sequenced log's pointers exist (docs/adr/0029). What a source lost nevertheless is a
// gap in the sequenced log, at the same position for every reader.
//
// # Bounds and locks
//
// A category costs a stream, two goroutines and about 100 bytes for each of its sources, and holds at most Config.Pointers
// pointers that are not appended. Categories of other processes cost nothing. stepInbox.mu and Sequencer.mu are leaf locks;
// neither is held across I/O.
package sequencer
