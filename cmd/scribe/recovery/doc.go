// Package recovery builds lost metadata again from the footers of blobs: logs with their LSNs, epochs and pointers, what they know of
// producers, and the categories. docs/format/blob.md says what footers hold and which rules tell committed pointers from others,
// docs/adr/0030-recovery-from-footers.md why.
//
// [Run] has three phases:
//
//	scan     list the blobs, read their footers in parallel, and sort what they say in a scratch database
//	resolve  decide for each blob whether it was committed: its writer's later blobs, later epochs and rival claims tell
//	build    walk through each log in the order of LSNs and write what stands
//
// # Memory
//
// Nothing is held in proportion to blobs or records: they are sorted on disk, in the scratch folder, which takes about 100 bytes for each
// payload. In memory are the caches and write buffers of two databases (at most 200 MB), one footer for each worker (mostly some 10 KB, at
// the limit of the format about 60 MB), and about 300 bytes for each category and 16 for each epoch of the log that is looked at.
//
// # Crashes
//
// The scratch database remembers which blobs were read. A scan that is begun again reads only the others; everything after the scan begins
// anew. Blobs that are gone by then do not count.
//
// Goroutines: one that lists, one a worker, all of which end before [Run] returns.
package recovery
