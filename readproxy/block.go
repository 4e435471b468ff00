package readproxy

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
)

// blockKey names a block in one of its two forms. It has every fact that the pointer states about the block. So a pointer with
// other facts on the same position has another key, and its block fails the checks of its own fetch.
type blockKey struct {
	region string
	blob   pointer.BlobID
	class  uint32
	offset uint64
	length uint32
	rawLen uint32
	crc    uint32
	codec  pointer.Codec
	// raw: the key is of the decompressed block.
	raw bool
	// view, if not 0, means that the key is of a payload in a view, compressed with codec: the payload of length part at offset
	// at.
	view     uint64
	at, part uint32
}

// viewKeyOf returns the key of a payload in a view.
func viewKeyOf(p *pointer.Pointer, view uint64, codec uint32) blockKey {
	k := blockKeyOf(p, true)
	k.view, k.at, k.part, k.codec = view, p.Offset, p.Length, pointer.Codec(codec) //nolint:gosec // one of three
	return k
}

func blockKeyOf(p *pointer.Pointer, raw bool) blockKey {
	return blockKey{
		region: p.Region, blob: p.Blob, class: p.Class, offset: p.BlockOffset, length: p.BlockLen, rawLen: p.BlockRawLen,
		crc: p.BlockCRC, codec: p.Codec, raw: raw,
	}
}

// sharedKey returns the key of the stored block in memcached. Blob ids are globally unique, and every reader compares length and
// checksum, so the key needs nothing more.
func (k *blockKey) sharedKey() string {
	b := hex.AppendEncode(make([]byte, 0, 80), k.blob[:])
	for _, v := range []uint64{k.offset, uint64(k.length), uint64(k.crc)} {
		b = strconv.AppendUint(append(b, '.'), v, 36)
	}
	return string(b)
}

// checkedBlock is a block whose checksum was verified. It is immutable, but for unread.
type checkedBlock struct {
	data []byte
	// category is that of the first frame; empty for a decompressed block, which may have several.
	category string
	// sums are the checksums of the pieces of a decompressed block; a stored block has the checksum of its pointer.
	sums []uint32
	// shared: the block is from memcached.
	shared bool
	// unread: the block was pushed, and has not been read yet. The cache's mutex guards it.
	unread bool

	// For a stored block and for a payload in a view: the compression and the checksum of data. Those of a block that was encrypted are not its pointer's.
	codec uint32
	crc   uint32
	// For a payload in a view: its description and its uncompressed length.
	view   *scribev1.PayloadView
	rawLen uint64
	// part describes what of the payload is in a view for readers that are limited to some rows and columns.
	part *scribev1.PayloadRestriction
}

// blockOverhead is the size that the cache adds to a block's data.
const blockOverhead = 256

func (b *checkedBlock) chargedBytes() int64 {
	return int64(len(b.data)) + 4*int64(len(b.sums)) + blockOverhead
}

// pieceBytes is the size of the pieces of a decompressed block that have their own checksums. A payload of a few hundred bytes
// may be cut from a block of a megabyte, and only the memory in use should be verified.
const pieceBytes = 16 << 10

func sumPieces(data []byte) []uint32 {
	sums := make([]uint32, 0, (len(data)+pieceBytes-1)/pieceBytes)
	for at := 0; at < len(data); at += pieceBytes {
		sums = append(sums, record.CRC(data[at:min(at+pieceBytes, len(data))]))
	}
	return sums
}

// isIntact reports whether the bytes [begin, end) of a block in memory are unchanged since they were checked. A stored block is
// always verified as a whole.
func (b *checkedBlock) isIntact(k *blockKey, begin, end uint64) bool {
	if !k.raw {
		return record.CRC(b.data) == b.crc
	}
	for at := begin / pieceBytes; at < uint64(len(b.sums)) && at*pieceBytes < end; at++ {
		if record.CRC(b.data[at*pieceBytes:min((at+1)*pieceBytes, uint64(len(b.data)))]) != b.sums[at] {
			return false
		}
	}
	return true
}

// errSum means that bytes do not match the pointer's checksum.
var errSum = errors.New("readproxy: block does not match its checksum")

// checkStored verifies stored bytes against a pointer.
func checkStored(p *pointer.Pointer, stored []byte) error {
	if len(stored) != int(p.BlockLen) {
		return fmt.Errorf("%w: it has %d bytes, the pointer says %d", errSum, len(stored), p.BlockLen)
	}
	if computed := record.CRC(stored); computed != p.BlockCRC {
		return fmt.Errorf("%w: want %#08x, computed %#08x", errSum, p.BlockCRC, computed)
	}
	return nil
}

// newBlock returns the cached form of verified stored bytes. It keeps them, unless the block is decrypted or decompressed. The error of a block that
// can't be decrypted for now has a reason.
func (s *Server) newBlock(p *pointer.Pointer, stored []byte, raw bool) (*checkedBlock, error) {
	codec, data := p.Codec.Compression(), stored
	if p.Codec.IsEncrypted() {
		var err error
		if data, err = s.decryptBlock(p, stored); err != nil {
			return nil, err
		}
	}
	if !raw {
		h, err := s.firstHeader(codec, data)
		if err != nil {
			return nil, err
		}
		crc := p.BlockCRC
		if p.Codec.IsEncrypted() {
			crc = record.CRC(data)
		}
		return &checkedBlock{data: data, category: h.CategoryName(), codec: uint32(codec), crc: crc}, nil
	}
	if codec != pointer.CodecNone {
		var err error
		if data, err = layout.Decompress(nil, codec, data, int(p.BlockRawLen)); err != nil {
			return nil, err
		}
	}
	return &checkedBlock{data: data, sums: sumPieces(data)}, nil
}

// decryptBlock decrypts a block with a key from its store. An error without a reason is damage.
func (s *Server) decryptBlock(p *pointer.Pointer, stored []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.running, s.cfg.FetchTimeout)
	defer cancel()
	keys, err := s.deps.keysOf(s.localName(p.Region))
	if err != nil {
		return nil, s.noKeyError(p, err)
	}
	data, err := keys.DecryptBlock(ctx, p.Codec, stored, int(p.BlockRawLen))
	switch {
	case err == nil, errors.Is(err, layout.ErrDamaged):
		return data, err
	case errors.Is(err, layout.ErrVersion):
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", describePayload(p), err)
	case errors.Is(err, encryption.ErrNoKey):
		return nil, rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s can't be decrypted any more: %w", describePayload(p), err)
	case s.running.Err() != nil:
		return nil, s.shutdownError()
	}
	return nil, s.noKeyError(p, err)
}

// noKeyError is what readers are told while a key can't be had. What the key file and the store say is for the log.
func (s *Server) noKeyError(p *pointer.Pointer, err error) error {
	s.log.Warn("block can't be decrypted", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.retryHint(), "%s can't be decrypted by this read proxy for now: its log says why", describePayload(p))
}

// headerRoom bounds the size of a frame's header and category name.
const headerRoom = record.HeaderLen + record.MaxCategoryName

// newPeeker returns a decoder that reads the beginning of a block, or an error. It starts no goroutine.
func newPeeker() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(pointer.MaxBlockRaw))
	if err != nil {
		return err
	}
	return d
}

// firstHeader returns the header of the first frame of a block. It decompresses only the beginning of a compressed block. The
// header is valid, and the caller owns it.
func (s *Server) firstHeader(codec pointer.Codec, stored []byte) (record.Header, error) {
	if codec == pointer.CodecNone {
		return record.ParseHeader(stored)
	}
	v := s.peekers.Get()
	d, ok := v.(*zstd.Decoder)
	if !ok {
		return record.Header{}, v.(error)
	}
	defer func() {
		_ = d.Reset(nil) // drops the reference to stored
		s.peekers.Put(d)
	}()
	if err := d.Reset(bytes.NewReader(stored)); err != nil {
		return record.Header{}, err
	}
	buf := make([]byte, headerRoom)
	n, err := io.ReadFull(d, buf)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return record.Header{}, err
	}
	return record.ParseHeader(buf[:n])
}
