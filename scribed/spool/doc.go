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
// # What is on disk when
//
//   - A new segment is preallocated, gets its header, and is synced, and then the folder is. Only then is it appended to.
//   - Append writes, once a call. Sync waits for the one goroutine that syncs; callers that wait at the same time share an fsync.
//   - Sealing syncs the data before it writes the footer, and syncs that. A footer that checks stands for data that is on disk.
//   - Rewriting writes another file, syncs it, renames it, syncs the folder, and then removes the old ones.
//   - The state file has two slots that are written in turn, with a generation and a checksum. It is saved StateInterval after
//     something was done, and before a segment is removed.
//
// So nothing that was synced is lost in a crash, and what was done since the state was saved last is given out again.
//
// After a failed sync nobody knows what of the file is on disk, and another sync would say that all is well. The file is never
// written or synced again. All who wait get ErrFailed. What was not synced is still in memory (that is what UnsyncedBytes bounds),
// and the segment is rewritten from there and from what was synced before. Until that is done Sync waits for it.
//
// # Recovery
//
// Open reads the state and the ends of the segments: for 10 GB some hundred small reads. A segment without a footer is read as a
// whole; that is the one that was appended to, rarely two. In it each record's header says how much of the segment was synced when
// the record was written. What does not check before that point is damage; behind it, it is what a crash left of an append that was
// not synced, and is left out without a word but in the log and in a metric. Records behind such a hole are kept: they may have been
// acknowledged. The segment is synced, gets a footer behind everything that is in the file, and is not appended to any more.
//
// Damage is found by checksums: at Open in what Open reads, else when a record is claimed or rewritten. A range that does not check
// is copied to the quarantine, counted (Losses, Lost, metrics), and passed over: the reader goes on with the next header that checks
// and stands where it was written. A damaged index is worked out by reading its segment, and the segment is rewritten. A damaged slot
// of the state leaves the other; without both everything is held again.
//
// # Space
//
// MaxBytes bounds the lengths of all segments and the state, preallocated space and files that are being rewritten or removed included.
// Appends leave half a segment of it to rewriting. When the disk is full before that, the ballast is removed, so that sealing,
// the state and rewriting go on, and no segment is begun until the ballast could be made again.
//
// # Memory
//
// About 250 bytes for each category in each segment; 32 bytes for each record of the segments that have no footer yet, and for those
// of indexes that were read, up to IndexBytes; what is not synced, up to UnsyncedBytes; about 100 bytes for each claimed record. The
// state of a part (what is done and claimed) is ranges of positions: one if it is worked off in order.
//
// # Who owns what
//
// Whoever holds tail (a mutex) owns the end of the log: it alone writes records and changes which segment is active. The syncer (a
// goroutine) alone syncs records. The keeper (a goroutine) alone seals, rewrites and removes segments, and saves the state. The mutex mu
// guards the book of what is held and all that these share; it is not held across I/O. Lock order: tail, ballasting, mu; the
// quarantine's own mutex is taken with none. A file that is read or written to is pinned (segment.readers), and the keeper removes it when
// nobody uses it.
package spool
