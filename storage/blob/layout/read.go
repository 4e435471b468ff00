package layout

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
)

// tailLen is how many bytes from the end of a blob are read first. Usually they include the footer.
const tailLen = 64 << 10

// ReadFooter reads the footer of the blob under key, one of [pointer.Key]. It reads from the end: two or three requests. The
// errors are [DamageError], [VersionError], pointer.ErrInvalid for the key, and those of the store.
func ReadFooter(ctx context.Context, store blob.Store, key string) (*Footer, error) {
	f, _, err := readFooter(ctx, store, key, -1)
	return f, err
}

// ReadFooterOf is [ReadFooter] of a blob whose size is known, as from a listing: usually one request.
func ReadFooterOf(ctx context.Context, store blob.Store, info blob.Info) (*Footer, error) {
	f, _, err := readFooter(ctx, store, info.Key, info.Size)
	return f, err
}

// readFooter asks for the size if it is negative. It returns the blob's size too, also with errors that occur after the size is
// known.
func readFooter(ctx context.Context, store blob.Store, key string, size int64) (*Footer, int64, error) {
	class, id, err := pointer.ParseKey(key)
	if err != nil {
		return nil, 0, err
	}
	if size < 0 {
		info, err := store.Stat(ctx, key)
		if err != nil {
			return nil, 0, err
		}
		size = info.Size
	}
	if size < HeaderLen+TrailerLen || size > pointer.MaxBlobLen {
		bad := damagef("length", 0, "%d bytes are not in %d..%d", size, HeaderLen+TrailerLen, int64(pointer.MaxBlobLen))
		return nil, size, bad.damageError(key, min(size, pointer.MaxBlobLen))
	}
	tail := make([]byte, min(size, tailLen))
	if err := readAt(ctx, store, key, tail, size-int64(len(tail)), "trailer"); err != nil {
		return nil, size, err
	}
	start := size - TrailerLen
	t, version, bad := decodeTrailer(tail[len(tail)-TrailerLen:], size)
	switch {
	case bad != nil:
		return nil, size, bad.damageError(key, start)
	case version > Version:
		return nil, size, &VersionError{Key: key, Version: version, Supported: Version}
	}
	footer, err := cutFooter(ctx, store, key, t, tail)
	if err != nil {
		return nil, size, err
	}
	var f *Footer
	if computed := record.CRC(footer); computed != t.footerCRC {
		bad = damagef("footer checksum", 0, "stored %#08x, computed %#08x", t.footerCRC, computed)
	} else if f, bad = decodeFooter(version, footer, t.footerOffset); bad == nil && (f.ID != id || f.Class != class) {
		bad = damagef("footer: blob id", 0, "it is that of %s", pointer.Key(f.Class, f.ID))
	}
	if bad != nil {
		return nil, size, bad.damageError(key, int64(t.footerOffset))
	}
	return f, size, nil
}

// cutFooter cuts the footer out of the blob's tail, or reads it if the tail does not include all of it.
func cutFooter(ctx context.Context, store blob.Store, key string, t blobTrailer, tail []byte) ([]byte, error) {
	if need := int(t.footerLen) + TrailerLen; need <= len(tail) {
		return tail[len(tail)-need : len(tail)-TrailerLen], nil
	}
	footer := make([]byte, t.footerLen)
	if err := readAt(ctx, store, key, footer, int64(t.footerOffset), "footer"); err != nil {
		return nil, err
	}
	return footer, nil
}

// readAt reports a blob that is too short as damage.
func readAt(ctx context.Context, store blob.Store, key string, dst []byte, off int64, what string) error {
	err := store.ReadAt(ctx, key, dst, off)
	if errors.Is(err, blob.ErrRange) {
		return &DamageError{Key: key, What: what, Offset: off, Err: err, Reason: fmt.Sprintf("the blob ends before its %d bytes do", len(dst))}
	}
	return err
}

// ReadBlock reads and checks the stored block that p points into. The caller owns the bytes. The errors are [DamageError],
// pointer.ErrInvalid for a pointer outside the limits, and those of the store.
func ReadBlock(ctx context.Context, store blob.Store, p *pointer.Pointer) (stored []byte, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	stored = make([]byte, p.BlockLen)
	key := p.Key()
	if err := readAt(ctx, store, key, stored, int64(p.BlockOffset), "block"); err != nil {
		return nil, err
	}
	if computed := record.CRC(stored); computed != p.BlockCRC {
		bad := damagef("block checksum", 0, "stored %#08x, computed %#08x", p.BlockCRC, computed)
		return nil, bad.damageError(key, int64(p.BlockOffset))
	}
	return stored, nil
}

// decoder is shared: DecodeAll serves as many callers at a time as there are processors, lets others wait, and keeps the memory
// of its decoders. It starts no goroutine.
var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithDecoderMaxMemory(pointer.MaxBlockRaw),
		// Never more than the given capacity: the size that a block claims can't be trusted.
		zstd.WithDecodeAllCapLimit(true),
	)
})

// Decompress returns the rawLen bytes of the block, in the memory of dst (from its beginning) if its capacity suffices, else in
// new memory; never in that of stored. A block of another length is refused after at most rawLen bytes. The error matches
// [ErrDamaged].
func Decompress(dst []byte, codec pointer.Codec, stored []byte, rawLen int) ([]byte, error) {
	if rawLen < 1 || rawLen > pointer.MaxBlockRaw {
		return nil, fmt.Errorf("%w: raw length %d is not in 1..%d", ErrDamaged, rawLen, pointer.MaxBlockRaw)
	}
	if cap(dst) < rawLen {
		dst = make([]byte, rawLen)
	}
	dst = dst[:0:rawLen]
	switch codec {
	case pointer.CodecNone:
		if len(stored) != rawLen {
			return nil, fmt.Errorf("%w: %d stored for %d raw bytes without compression", ErrDamaged, len(stored), rawLen)
		}
		return append(dst, stored...), nil
	case pointer.CodecZstd:
		d, err := decoder()
		if err != nil {
			return nil, fmt.Errorf("layout: make a zstd decoder: %w", err)
		}
		out, err := d.DecodeAll(stored, dst)
		if err != nil {
			return nil, fmt.Errorf("%w: decompress %d bytes into %d: %w", ErrDamaged, len(stored), rawLen, err)
		}
		if len(out) != rawLen {
			return nil, fmt.Errorf("%w: decompressed %d bytes into %d instead of %d", ErrDamaged, len(stored), len(out), rawLen)
		}
		return out, nil
	default:
		return nil, fmt.Errorf("%w: %s is unknown", ErrDamaged, codec)
	}
}

// Payload returns the payload of p in its decompressed block; the result aliases block. The error is a [DamageError].
func Payload(block []byte, p *pointer.Pointer) ([]byte, error) {
	end := uint64(p.Offset) + uint64(p.Length)
	if uint64(len(block)) != uint64(p.BlockRawLen) || end > uint64(len(block)) {
		bad := damagef("payload", 0, "%d bytes at %d of a block of %d: the block has %d", p.Length, p.Offset, p.BlockRawLen, len(block))
		return nil, bad.damageError(p.Key(), int64(p.BlockOffset))
	}
	return block[p.Offset:end:end], nil
}
