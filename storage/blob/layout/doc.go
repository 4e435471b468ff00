// Package layout is the format of a blob: payloads of many categories in compressed blocks, and a footer that describes them.
// docs/format/blob.md is the byte-level reference.
//
//	header | block | block | ... | footer | trailer
//
// Writing: a [Builder] takes compressed blocks and the payloads inside them, completes the payloads' pointers, and returns the
// parts for one blob.Store.Put.
//
// Reading by pointer needs neither header nor footer: [ReadBlock] fetches and checks the block, [Decompress] and [Payload] cut
// the payload out of it.
//
// The footer serves readers without pointers: retention, inspection, and the rebuilding of lost metadata. For each payload it
// records the physical shard, the LSN that its pointer was to get, the epoch of the writer, and the pointer itself. Its [History]
// records the outcomes of the blobs that the writer built before. [ReadFooter] reads it from the blob's end, and [Verify] checks
// the whole blob. Package cmd/scribe/recovery tells committed blobs from others.
//
// # Errors
//
// [DamageError] (it matches [ErrDamaged]) names the blob, the part and the offset; [VersionError] (it matches [ErrVersion]) is a
// blob of a newer version, which is not damage. Errors of the store are returned as they are: a missing blob is blob.ErrNotFound.
package layout
