// Package checkpoint is the format of a checkpoint: an exact position in a category, as a text that a user can keep in a file, a
// database or a shell variable and use to resume. docs/format/checkpoint.md is the byte-level reference.
//
// For each physical shard, a checkpoint has the LSN of the next pointer to read and the number of messages of that pointer's
// payload that were already delivered. It also has the reader's watermark. Shards without a position are read from the reader's
// start.
//
//	text := cp.String()
//	...
//	cp, err := checkpoint.Parse(text)
//
// The text is "scribe1." and base64 for URLs without padding: letters, digits, '-', '_' and one '.', which every shell, file
// system and URL accepts unquoted. A checksum covers all of it, so a truncated or changed text is an error, never another
// position. Equal checkpoints have equal texts.
//
// Callers branch on [ErrCorrupt], [ErrVersion] and [ErrInvalid]. [Checkpoint.String] does not validate; [Parse] refuses whatever
// [Checkpoint.Validate] refuses.
package checkpoint
