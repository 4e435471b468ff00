// Package deadletter keeps frames that cannot be delivered: the upstream refuses them for good, and no caller waits for them. A
// letter is a frame with its category, the reason, the error's text and the time, so that a person can find out why, and can send
// it again once the cause is gone.
//
// A folder holds files of one or more letters, each protected by a CRC32C (docs/format/deadletter.md). [Folder.Put] writes a
// file, syncs it, and renames it into place, so a file is complete or absent. The folder is bounded in bytes and in files: the
// oldest files are removed to free capacity, and [Folder.Totals] counts them. With Deps.Wrapper, messages and frames are encrypted.
// [Decode] reads a file.
package deadletter
