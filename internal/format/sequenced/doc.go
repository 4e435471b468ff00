// Package sequenced is the format of the two logs that a sequencer keeps of a category: the sequenced log, which gives the
// messages of all of the category's logs one order, and the log of positions, from which a sequencer resumes.
// docs/format/sequenced.md is the byte-level reference.
//
// # The logs
//
// Both are physical shards of the category, under a logical shard that no category uses ([Logical]): so they are dropped and
// erased with the category, and no producer can write to them. [Log] and [Positions] name them, [Reserved] tells them from other
// shards ("sources").
//
// A record of the sequenced log is a [Record]: a pointer as in its source, with its position there, or a gap in a source. It has
// the number of its first message ([Record.Offset]). Offsets are dense over the whole life of the category, also after trims, so
// they identify messages. A gap takes no numbers, since its number of messages is unknown.
//
// A record of the log of positions is a [Change]: the positions up to which the sources were sequenced. It is appended in the
// transaction that appends the sequenced records, and both logs are opened together. So the newest record always has the newest
// positions, and only the process that last opened the logs can append to either. Most records are changes relative to the one
// before; now and then one has all positions ("whole"), and older records are trimmed. [Reader] reads them.
//
// # Horizon
//
// A sequenced log is in the order of the sources' persisted times, since its sequencer merges strictly. [Record.Horizon] is the
// newest of these times up to a record, so it never decreases, and records can be found by it. Retention trims by it and not by
// the persisted times of the sequenced log itself, which are later: a pointer must not outlive the source record that it was
// copied from, because blobs are kept for that record.
package sequenced
