// Package sequenced is what is in the two logs that a sequencer keeps of a category: the sequenced log, which gives the messages of all of
// the category's logs one order, and the log of positions beside it, from which a sequencer goes on. docs/format/sequenced.md is the
// byte-level reference.
//
// # The logs
//
// Both are physical shards of the category, under a logical shard that no category has ([Logical]): so they are dropped and erased with
// it, and no producer can write to them. [Log] and [Positions] name them, [Reserved] tells them from the others ("sources").
//
// A record of the sequenced log is a [Record]: a pointer as it stands in a source, with its position there, or a gap in a source.
// It has the number of the first of its messages ([Record.Offset]): offsets are dense over the whole life of the category, whatever is trimmed,
// so they name messages. A gap has no number, since nobody knows how many messages were in it.
//
// A record of the log of positions is a [Change]: how far the sources were sequenced. It is appended in the transaction that appends
// to the sequenced log what it speaks of, and both logs are opened together, so the newest positions are always those of the newest
// record, and whoever opened the logs last is the only one to append to either. Most are changes against the one before; now and then
// all positions are written ("whole"), and what is older is trimmed. [Load] reads them.
//
// # Horizon
//
// A sequenced log is in the order of the sources' persisted times, since its sequencer merges strictly. [Record.Horizon] is the newest of
// these up to a record, so it never decreases, whatever a sequencer did: records can be found by it. Retention trims by it and not by the
// persisted times of the sequenced log itself, which are later: a pointer must not outlive the record that it was copied from, because blobs
// are kept for the latter.
package sequenced
