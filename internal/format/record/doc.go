// Package record is the frame format: the layout of messages between the producer that encodes them, once, and the consumer that
// decodes them, once. It imports no other package of this module. docs/format/frame.md is the byte-level reference.
//
// # Frame
//
// A frame holds messages of one (category, logical shard): a fixed header of [HeaderLen] bytes, the category name, and a body.
// Two checksums (CRC32C) protect it. The header checksum covers the header and the name, so after [ParseHeader] a hop can trust
// its routing fields. The body checksum covers the messages from producer to consumer; a hop verifies it with [Check]. No hop
// decodes messages.
//
// # Writing
//
// A [Builder] appends messages to one frame at the end of the caller's buffer. It does not allocate if the buffer is large
// enough, so a producer reuses a Builder and a buffer:
//
//	var b record.Builder
//	if err := b.Reset(buf[:0], record.Envelope{Category: "web.access"}); err != nil {
//		return err
//	}
//	for i := range messages {
//		if err := b.Append(&messages[i]); err != nil {
//			return err // errors.Is(err, ErrFrameFull): finish this frame, begin another
//		}
//	}
//	buf, err := b.Finish()
//
// A buffer can hold several frames: pass the result of Finish to the next Reset. [Split] finds them again.
//
// # Reading
//
// A [Decoder] checks a whole frame and then yields its messages as [Record] values that point into the frame's bytes, without
// copies or allocations. A record is therefore valid as long as those bytes are.
//
// # Errors
//
// Callers branch on sentinels: [ErrCorrupt] (damage), [ErrVersion] (a frame of a newer version), [ErrTruncated] (a buffer that
// ends too early; it also matches [io.ErrUnexpectedEOF]), [ErrTooLarge], [ErrFrameFull], [ErrInvalid] and others. Typed errors
// add the details. Every length is compared with its limit and with the bytes at hand before it is used, so a hostile frame costs
// no more memory than its own size.
package record
