// Package record is the frame format: how messages are laid out between the producer that encodes them, once, and the consumer that
// decodes them, once. It imports nothing else of this module, and every other package may import it. docs/format/frame.md is the
// byte-level reference.
//
// # Frame
//
// A frame holds messages of one (category, logical shard): a fixed header of [HeaderLen] bytes, the category name, and a body. Two
// checksums (CRC32C) protect it. The header checksum covers the header and the name, so a hop may trust what it routes by after
// [ParseHeader]; the body checksum covers the messages from producer to consumer, so a hop that wants to know whether it moves good bytes
// calls [Check]. No hop decodes messages.
//
// # Writing
//
// A [Builder] appends messages to one frame at the end of a buffer of the caller. It does not allocate when the buffer is large enough,
// which is why a producer keeps a Builder and a buffer and uses them again:
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
// Frames may stand one after the other in one buffer: pass what Finish returned to the next Reset. [Split] finds them again.
//
// # Reading
//
// A [Decoder] checks a whole frame and then yields its messages as [Record] values that point into the frame's bytes; nothing is copied
// and nothing is allocated. A record is therefore valid as long as those bytes are.
//
// # Errors
//
// Callers branch on sentinels: [ErrCorrupt] is damage or a frame that no writer of this format writes, [ErrVersion] a frame of a newer
// version, [ErrTruncated] a buffer that ends too early (it also matches [io.ErrUnexpectedEOF]), [ErrTooLarge] a message over a limit,
// [ErrFrameFull] a frame without room, [ErrInvalid] an argument outside the format's rules. The typed errors beside them say where, and
// how much.
//
// Every length is compared with its limit and with the bytes at hand before it
// is used, so a hostile frame costs no more memory than its own size.
//
// # Identifiers
//
// [ShardID] names a physical shard, that is, one metadata log; [LSN] is a place in it.
package record
