// Package recovery rebuilds lost metadata from the footers of blobs: logs with their LSNs, epochs, pointers and producer states,
// and the categories. docs/format/blob.md defines footers, and the rules that distinguish committed pointers from others;
// docs/adr/0030-recovery-from-footers.md has the reasons.
//
// [Run] has three phases:
//
//	scan     list the blobs, read their footers in parallel, and sort their entries in a scratch database
//	resolve  decide for each blob whether it was committed: from its writer's later blobs, later epochs and rival claims
//	build    write the valid claims of each log in the order of LSNs
//
// With a [Base], a copy of the logs as a backup has it, only what came later is taken from footers: what the base has decides about
// blobs that claim its positions, and blobs from below its boundary are not read (docs/adr/0084-backups-go-on-in-the-blobs.md).
//
// # Memory
//
// Memory use does not grow with blobs or records: they are sorted on disk, in the scratch folder, which takes about 100 bytes for
// each payload. Memory has the caches and write buffers of two databases (at most 200 MB), one footer for each worker (usually
// some 10 KB, at the limit of the format about 60 MB), about 300 bytes for each category, and 16 bytes for each epoch of the
// current log.
//
// # Crashes
//
// The scratch database records which blobs were read. After a crash, the scan reads only the others; the later phases start
// again. Blobs that were deleted meanwhile are ignored.
//
// Goroutines: one that lists blobs, and one for each worker. All end before [Run] returns.
package recovery
