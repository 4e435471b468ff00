// Package powerdisk is a file system for real processes whose disk can lose power, fill up, and fail to sync. It is kept in memory
// and mounted with FUSE, so it needs Linux, root and /dev/fuse.
//
//	disk, err := powerdisk.New(powerdisk.Config{Dir: dir, Rand: rng})
//	// ... processes write below dir ...
//	disk.PowerOff()       // decides what the disk keeps; every later call fails
//	// ... kill the processes ...
//	err = disk.PowerOn()  // mounts the kept data
//
// # What is kept
//
// Data written to a file is durable once fsync or fdatasync of that file has returned; a created, renamed or removed name once fsync of
// its folder has. Of the rest the disk keeps what the kernel might have written back:
//
//   - each page of 4 KiB that was written since the last sync is as before, as written, or torn: some of its sectors of 512 bytes are
//     old and some new. Pages are independent of each other and of the order in which they were written;
//   - a file that grew has its old length, its new one, or one in between; data that was not kept reads as zeros. A file that was
//     truncated without a sync may have its old length and content again;
//   - changes of names keep their order, and any number of the last ones may be lost. A rename has happened or not. Syncing a file does
//     not sync its name: most file systems do that, but none has to.
//
// The share of the unsynced data that survives is drawn for each power loss, from nothing to all of it.
//
// # What it is not
//
// It does not lose synced data, as a disk that lies about its cache does, and does not damage data at rest. Processes see no permissions,
// links, extended attributes or holes. It can't find needless syncs: a process that syncs too much passes like one that syncs just
// enough.
package powerdisk
