// Package layout is the format of a blob: payloads of many categories in compressed blocks, and a footer that describes them.
// docs/format/blob.md is the byte-level reference.
//
//	header | block | block | ... | footer | trailer
//
// Writing: a [Builder] takes blocks that are compressed already and the payloads inside them, completes the payloads' pointers,
// and hands out the parts for one blob.Store.Put.
//
// Reading by pointer needs neither header nor footer: [ReadBlock] fetches and checks the block, [Decompress] and [Payload] cut the
// payload out of it.
//
// The footer is for those who have a blob and no pointers: retention, inspection, and the rebuilding of lost metadata. Of each
// payload it records the physical shard, the LSN that its pointer was to get and the epoch of the writer, and the pointer itself; and in
// its [History] what became of the blobs that the writer built before. [ReadFooter] reads it from the blob's end, and [Verify] checks
// everything that the blob holds. Package cmd/scribe/recovery tells blobs that were committed from those that were not.
//
// # Errors
//
// [DamageError] (it matches [ErrDamaged]) names the blob, the part and the offset; [VersionError] (it matches [ErrVersion]) is a blob of
// a newer version, which is no damage. Errors of the store come through as they are: a blob that is not there is blob.ErrNotFound.
package layout
