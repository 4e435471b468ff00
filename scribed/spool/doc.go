// Package spool is the durable segment store of a host's agent: what producers write while the backend is slow or gone, and what must
// outlive the process before it is acknowledged.
//
// # Log and segments
//
// There is one log for all categories, cut into segments of the same size. A segment is a file: preallocated, appended to, synced,
// and when it is full sealed with a footer that says what it holds of each category and where. Package layout is the format of the
// files; docs/format/spool.md describes their bytes.
//
//	Append -> active --full--> sealing --synced, footer--> sealed --all done--> removed
//	             |                 |                         |
//	             '--- failed sync -+--> failed --rewritten---+--mostly done: rewritten--> sealed, of a higher generation
//
// A record is named by its position: the segment and the offset at which it was first written. Rewriting keeps positions, so that
// references, claims and the state are valid whatever file a record is in. Neighbours that are mostly done become one file; so a
// category that nobody takes costs the space of its records, and not that of the segments that they are in.
//
// What is synced survives a crash. What was done since the state was saved last is given out again. Damage is found by checksums, copied to
// the quarantine, counted, and passed over. DESIGN.md says what is on disk when, and how recovery, space and memory are bounded.
//
// # Who owns what
//
// Whoever holds tail (a mutex) owns the end of the log: it alone writes records and changes which segment is active. The syncer (a
// goroutine) alone syncs records. The keeper (a goroutine) alone seals, rewrites and removes segments, and saves the state. The mutex mu
// guards the book of what is held and all that these share; it is not held across I/O. Lock order: tail, ballasting, mu; the
// quarantine's own mutex is taken with none. A file that is read or written to is pinned (segment.readers), and the keeper removes it when
// nobody uses it.
package spool
