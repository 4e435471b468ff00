// Package deadletter keeps frames that can't be delivered: ones that the upstream refuses for good, and that nobody waits for any
// more. Each stands with its category, the reason, the error's text and the time, so that a person can find out why, and can send
// it again once the cause is gone.
//
// A folder holds files of one or more letters, each checked by a CRC32C (docs/format/deadletter.md). [Folder.Put] writes a file,
// syncs it, and renames it into place, so a file is whole or not there. The folder is bounded in bytes and in files: the oldest are
// removed to free capacity, and [Folder.Totals] counts what went.
//
// [Names] and [Read] look into a folder without owning it, for inspection and replay; [Remove] takes a file away after it.
package deadletter
