// Package spool is the durable disk buffer of a host's agent. It holds what producers write while the backend is slow or
// unavailable, and what must outlive the process before it is acknowledged.
//
// # Log and segments
//
// There is one log for all categories, cut into segments of equal size. A segment is a file: preallocated, appended to, synced
// and, when full, sealed with a footer that lists the records of each category. Package layout is the format of the files;
// docs/format/spool.md describes the bytes.
//
//	Append -> active --full--> sealing --synced, footer--> sealed --all done--> removed
//	             |                 |                         |
//	             '--- failed sync -+--> failed --rewritten---+--mostly done: rewritten--> sealed, of a higher generation
//
// A record is identified by its position: the segment and the offset at which it was first written. Rewriting keeps positions, so
// references, claims and the state stay valid whatever file a record is in. Neighbouring segments whose records are mostly done
// are merged into one file, so a category that is not forwarded costs the space of its records, not of the segments that they
// were in.
//
// Synced records survive a crash. Records that were done since the last save of the state are given out again after a crash.
// Damage is found by checksums, and by tags if records are encrypted (Deps.Wrapper), copied to the quarantine, counted, and skipped. DESIGN.md says what is on disk when, and how
// recovery, space and memory are bounded.
//
// # Who owns what
//
// The holder of tail (a mutex) owns the end of the log: only it writes records and changes the active segment. Only the syncer (a
// goroutine) syncs records. Only the keeper (a goroutine) seals, rewrites and removes segments, and saves the state. The mutex mu
// guards the record book and all that these share; it is not held across I/O. Lock order: tail, ballasting, mu; the quarantine's
// own mutex is taken without any other. A file is pinned (segmentFile.readers) while it is read or written, and the keeper
// removes it once it is unpinned.
package spool
