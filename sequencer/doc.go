// Package sequencer is the role that gives categories one order that all readers see, whatever their window: it merges the logs of a category
// that is created with `--repeatable sequenced` into one more log, the sequenced log, which read streams then serve.
//
// # Flow
//
// For each of its categories a sequencer has a stream from the read stream service, of the logs that messages are written to ("sources"),
// merged strictly by persisted time. What the stream brings is appended to the sequenced log, in the order in which it comes: pointers,
// with the place in their source and the number of their first message, and gaps. While one append is under way the next one gathers.
//
//	read stream (strict, unsequenced) --> reception --> inbox --> ledger --> metalog.Append: sequenced log + positions
//	          ^                                           |                        |
//	          '--------------- credits -------------------'<-----------------------'
//
// The same transaction appends to the log of positions how far each source was sequenced (package internal/format/sequenced has both formats). So
// however a sequencer ends, the next one goes on exactly behind what was committed: it never sequences a pointer twice, nor passes one over.
// An append whose outcome is not known needs no special care: the positions tell.
//
// # Exactly one
//
// A term begins with opening both logs. That raises their epochs, and no other sequencer can append from then on; only then the positions are
// read and the stream is opened. A sequencer that does not know that it was replaced has its next append refused, and stops. So the
// metadata engine alone decides who sequences, and two that believe to be the one do no harm.
//
// Which process tries to be the one is decided by the membership: each category goes to the live member with the highest rendezvous weight.
// Members that join or leave move only their share. Processes that have the role and no categories stand by. Two with different views of the
// membership may both try; who is fenced waits a while before it tries again, see [Config.Contest].
//
// # What is sequenced is not lost sight of
//
// The collector trims sources no further than they were sequenced, within limits, and the sequenced log by the sources' times, before the
// sources: so the blobs of what the sequenced log holds are there (see docs/adr/0029). What a source lost all the same is a gap in the
// sequenced log, at the same place for every reader.
//
// # Bounds
//
// A category costs a stream, two goroutines and some 100 bytes for each of its sources, and holds at most Config.Pointers pointers that
// are not appended. Categories that are not this process's cost nothing.
//
// # Locks
//
// inbox.mu, run.mu and Sequencer.mu are leaves; none is held across I/O.
package sequencer
