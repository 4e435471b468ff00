package consumer

import (
	"fmt"

	"github.com/klauspost/compress/zstd"

	"scribe/consumer/internal/payload"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// newDecoder returns a decoder for concurrent use, which decompresses each payload to at most the capacity of its buffer. Each
// consumer has its own: it starts no goroutine, and allocates memory when it is first used.
func newDecoder(concurrency int) (*zstd.Decoder, error) {
	return zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(concurrency),
		zstd.WithDecoderMaxMemory(pointer.MaxBlockRaw),
		zstd.WithDecodeAllCapLimit(true),
		zstd.IgnoreChecksum(true)) // frames carry checksums from the producer
}

// pool holds buffers for decoded payloads.
var pool buffers.Pool

// freeBuffer returns the buffer of an item's payload to the pool. Nothing may refer to it any more.
func (it *streamItem) freeBuffer() {
	pool.Put(it.buf)
	it.Frames, it.buf = nil, nil
}

// damageError returns the error for a damaged part of a payload.
func damageError(p *payload.Payload, what string, offset int64, cause error) *DamageError {
	return &DamageError{Category: p.Category, Shard: p.Source, LSN: uint64(p.SourceLSN), What: what, Offset: offset, Cause: cause}
}

// decodePayload checks and decompresses a payload. The frames are in buf, or in the answer itself if it was not compressed: then
// buf is nil. transit reports that the damage may have happened in transit, so that another fetch may help.
func decodePayload(d *zstd.Decoder, p *scribev1.Payload, ptr *pointer.Pointer, at *payload.Payload) (frames []byte, buf *buffers.Buffer, transit bool, err error) {
	data := p.GetData()
	if err := checkCRC(p, at); err != nil {
		return nil, nil, true, err
	}
	length := uint64(ptr.Length)
	if p.GetRestricted() != nil { // a part of the payload, or its messages made anew
		length = min(p.GetRawLength(), pointer.MaxBlockRaw)
	}
	if p.GetRawLength() != length {
		return nil, nil, true, damageError(at, "payload length", -1, fmt.Errorf("announced %d bytes, the pointer says %d", p.GetRawLength(), length))
	}
	switch codec := pointer.Codec(min(p.GetCodec(), 255)); codec {
	case pointer.CodecNone:
		frames = data
	case pointer.CodecZstd:
		buf = pool.Get(int(length))
		frames, err = d.DecodeAll(data, buf.B[:0:length])
		if err != nil {
			pool.Put(buf)
			return nil, nil, false, damageError(at, "compressed payload", -1, err)
		}
	default:
		return nil, nil, false, damageError(at, "payload codec", -1, fmt.Errorf("%d is unknown to this build", p.GetCodec()))
	}
	if len(frames) != int(length) {
		err = damageError(at, "payload length", -1, fmt.Errorf("%d bytes, the pointer says %d", len(frames), length))
	} else if part := p.GetRestricted(); part != nil {
		err = checkFrames(frames, part.GetFrames(), part.GetMessages(), at)
	} else {
		err = checkFrames(frames, ptr.Frames, ptr.Messages, at)
	}
	if err != nil {
		pool.Put(buf)
		return nil, nil, false, err
	}
	return frames, buf, false, nil
}

// checkCRC checks the checksum of an answer.
func checkCRC(p *scribev1.Payload, at *payload.Payload) error {
	if computed := record.CRC(p.GetData()); computed != p.GetCrc() {
		return damageError(at, "payload checksum", -1, fmt.Errorf("announced %#08x, computed %#08x", p.GetCrc(), computed))
	}
	return nil
}

// checkFrames checks, without reading messages, that these are as many frames and messages as the pointer says, or the server of a part that the reader may see, of the
// category and the logical shard that the stream announced. The checksums of messages are checked when they are read.
func checkFrames(frames []byte, wantFrames, wantMessages uint32, at *payload.Payload) error {
	count, messages := uint32(0), uint64(0)
	for f, err := range record.Split(frames) {
		switch {
		case err != nil:
			return damageError(at, fmt.Sprintf("frame %d", count), int64(f.Offset), err)
		case string(f.Category) != at.Category:
			return damageError(at, fmt.Sprintf("frame %d", count), int64(f.Offset), fmt.Errorf("it is of category %q", f.Category))
		case f.Shard != uint32(at.Source.Logical()):
			return damageError(at, fmt.Sprintf("frame %d", count), int64(f.Offset), fmt.Errorf("it is of logical shard %d", f.Shard))
		}
		count++
		messages += uint64(f.Count)
	}
	if count != wantFrames || messages != uint64(wantMessages) {
		return damageError(at, "payload", -1, fmt.Errorf("%d frames of %d messages, expected %d of %d", count, messages, wantFrames, wantMessages))
	}
	return nil
}
