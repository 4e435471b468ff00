// Package backup keeps backups of a cell's metadata in a store of blobs: the files of a folder of metadata logs, the entries of a control
// store, and a list of both that is written last. docs/format/backup.md has the format, docs/adr/0084-backups-go-on-in-the-blobs.md the reasons.
//
//	b := backup.New(store, backup.Options{})
//	info, err := b.Create(ctx, backup.Manifest{...}, logsFolder, controlFolder)
//	all, err := b.List(ctx)
//	err = b.Fetch(ctx, all[0].Manifest.Logs, folder)
//
// Files are named by their content, so backups share what they have in common, and an interrupted backup or fetch goes on where it was. A list
// that can be read names files that exist: [Backups.Create] and [Backups.Delete] keep out of each other's way by objects under "backup/use/".
//
// Memory has one file of a folder while it is stored, and pieces of 4 MiB while it is fetched or verified; and 16 bytes for each file that lists
// name while files are removed. The package starts no goroutines.
package backup
