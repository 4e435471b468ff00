// Package file keeps blobs as files of a folder: the store of a single machine.
//
//	<dir>/blobs/72h/01890a5d-ac96-774b-bcce-b302099a8057    a blob: its key is its path
//	<dir>/.tmp/<random>-<n>                                 a blob that is being written
//
// # How Put makes a blob durable
//
//  1. write the parts to a new file in .tmp, which is in the same file system;
//  2. sync the file;
//  3. link it to its final name, which fails if there is one: nothing is ever overwritten, and a reader sees all of it or nothing;
//  4. sync the folder of the final name;
//  5. remove the name in .tmp.
//
// Folders that Put creates are synced into their parents before anything is linked into them. That a folder exists says nothing
// about that: another Put may have made it a moment ago and not synced it yet. The store therefore remembers the folders that it
// knows to be durable, and a Put into any other one syncs the chain itself.
//
// A step that fails makes Put fail. In particular a failed sync is final: what the kernel had in memory may be gone although the
// next sync succeeds, so the file is removed and the caller begins anew under another key.
//
// What a crash leaves in .tmp is removed by [New]. That no two stores use a folder at the same time is the business of the
// application, which locks its data folder.
//
// # File system
//
// The store does all its I/O through a vfs.FS of Pebble, which runs in the same process on the same disk: tests inject errors with
// errorfs and drop what was not synced with vfs.NewCrashableMem, for both at once if they like. The default is the operating system's.
package file
