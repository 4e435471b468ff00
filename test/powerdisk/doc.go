// Package powerdisk is a file system for real processes whose disk can lose its power, fill up, and fail to sync. It is kept in memory
// and mounted with FUSE, so it needs Linux, root and /dev/fuse.
//
//	disk, err := powerdisk.New(powerdisk.Config{Dir: dir, Rand: rng})
//	// ... processes write below dir ...
//	disk.PowerOff()       // this moment is what the disk keeps; every call fails from now on
//	// ... kill the processes ...
//	err = disk.PowerOn()  // mounts what was kept
//
// # What is kept
//
// What was written to a file is certain to be on the disk once fsync or fdatasync of that file has returned; a created, renamed or
// removed name once fsync of its folder has. Of the rest the disk keeps what the machine happened to have written back:
//
//   - each page of 4 KiB that was written since the last sync is there as before, as written, or, torn, with some of its sectors of 512
//     bytes old and some new; pages are independent of each other and of the order in which they were written;
//   - a file that grew is as long as before, as now, or something in between; what of it was not kept reads as zeros. A file that was
//     cut off without a sync may have its old length, and its old content, again;
//   - names change in the order in which they were changed, and any number of the last changes may be missing. A rename has happened
//     or not. Syncing a file does not sync its name: most file systems do that, none has to.
//
// How much of the unsynced data survives is drawn anew for each power loss, from nothing to all of it.
//
// # What it is not
//
// It does not lose what was synced, as a disk that lies about its cache does, and does not damage data at rest. It has no permissions,
// links, extended attributes or holes that a process could see. It can't tell what a process did not ask: a process that syncs too
// much is as good as one that syncs just enough.
package powerdisk
