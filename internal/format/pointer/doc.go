// Package pointer is the format of a metadata record: the blob and the range of a payload, its checksum, and a summary of its
// content. Batchers append pointers to physical shards; readers need nothing else to fetch and order a payload.
// docs/format/pointer.md is the byte-level reference.
//
// A payload is a run of frames of one physical shard. Payloads lie, compressed, in blocks of a blob: a large payload has a block
// of its own, small ones share one. A [Pointer] therefore has two ranges: the stored block in the blob, and the payload in the
// decompressed block.
//
// # Use
//
//	record := pointer.Append(nil, &p)
//	...
//	p, err := pointer.Decode(record)
//
// [Append] does not validate; [Decode] accepts only what [Pointer.Validate] accepts. A writer therefore validates before it
// stores. Package layout, which completes the pointers of a blob, does that, so a batcher need not.
//
// # Errors
//
// Callers branch on [ErrCorrupt] (damage), [ErrVersion] (a newer version) and [ErrInvalid] (an argument that violates the format).
// The checksum is checked first and has the same offset in every version, so a damaged version byte is never taken for a newer
// version.
//
// Times are Unix microseconds.
package pointer
