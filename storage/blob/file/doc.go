// Package file keeps blobs as files of a folder: the store of a single machine.
//
//	<dir>/blobs/72h/01890a5d-ac96-774b-bcce-b302099a8057    a blob: its key is its path
//	<dir>/.unfinished/<random>/<n>                          a blob that is being written by a store
//	<dir>/.unfinished/<random>/LOCK                         locked by that store
//
// # How Put makes a blob durable
//
//  1. write the parts to a new file in the store's folder in .unfinished, which is in the same file system;
//  2. sync the file;
//  3. link it to its final name, which fails if the name exists: nothing is ever overwritten, and a reader sees all of it or nothing;
//  4. sync the folder of the final name;
//  5. remove the name in the store's folder.
//
// Folders that Put creates are synced into their parents before anything is linked into them. An existing folder is not
// necessarily durable: another Put may have created it a moment ago without syncing it yet. The store therefore remembers which
// folders are durable, and a Put into any other folder syncs the chain itself.
//
// Put fails if any step fails. In particular, a failed sync is final: the kernel may have dropped the data although the next sync
// succeeds, so the file is removed and the caller starts again under another key.
//
// # Shared folders
//
// Stores of any number of processes may use one folder, also over a network, if the file system has locks. [New] removes what a crash
// left in .unfinished: the folders whose locks are free, one after another. A store makes its own folder at the first Put, so that a store that only
// reads and deletes opens on a full disk.
//
// # File system
//
// All I/O goes through a vfs.FS of Pebble, which runs in the same process on the same disk. Tests inject errors with errorfs and
// drop unsynced data with vfs.NewCrashableMem, or both. The default is the operating system's file system.
package file
