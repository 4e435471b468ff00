// Package checkpoint is the format of a checkpoint: an exact position in a category, as a text that a user can keep in a file, a
// database or a shell variable and hand back to resume. docs/format/checkpoint.md is the byte-level reference.
//
// A checkpoint holds, for each physical shard, the LSN of the next pointer to read and how many messages of that pointer's payload were
// already delivered, and the watermark that the reader had reached. Shards without a position are read from the reader's start.
//
//	text := cp.String()
//	...
//	cp, err := checkpoint.Parse(text)
//
// The text is "scribe1." and base64 for URLs without padding: letters, digits, '-', '_' and one '.', which every shell, file
// system and URL takes as it is. A checksum covers all of it, so a text that was cut or changed is an error, never another
// position. Equal checkpoints have equal texts.
//
// Callers branch on [ErrCorrupt], [ErrVersion] and [ErrInvalid]. [Checkpoint.String] writes whatever it is given; what
// [Checkpoint.Validate] refuses, [Parse] does not read.
package checkpoint
