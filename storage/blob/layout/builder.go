package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Entry describes a payload of a blob.
type Entry struct {
	// Shard is the physical shard to which the payload's pointer was to be appended.
	Shard record.ShardID
	// Epoch is the writer's epoch, LSN the LSN that the pointer was to get.
	Epoch uint64
	LSN   record.LSN
	// Start is the first LSN of the epoch: everything below it was committed before, by writers of lower epochs; 0 if unknown.
	Start record.LSN
	// Predicted says that LSN depends on earlier appends to the shard that were not committed when the blob was built.
	Predicted bool
	// Category is the name of the shard's category.
	Category string
	// Settings are the category's settings, nil if unknown. The first entry of a category in a blob counts.
	Settings *Settings
	// Pointer is the payload's pointer. Its Blob, Class and Region are those of the blob.
	Pointer pointer.Pointer
}

// Builder assembles one blob. It is for one goroutine at a time. Invalid input makes [Builder.Finish] fail, so that callers check
// one error; no pointer of such a blob may be used.
type Builder struct {
	blobIdentity
	history History
	errs    []error

	blocks   []Block
	stored   [][]byte
	blockEnd uint64 // offset of the next block
	version  uint8  // the oldest that has what was added

	categories map[uint32]categoryIndex
	positions  map[logPosition]struct{} // of the entries
	entries    int

	// The sections of the footer, without the counts in front of them.
	blockSection    []byte
	categorySection []byte
	entrySection    []byte
}

// logPosition is the position of a pointer: log and LSN.
type logPosition struct {
	shard record.ShardID
	lsn   record.LSN
}

type categoryIndex struct {
	index int
	name  string
}

// Block is a compressed block of a blob.
type Block struct {
	Codec pointer.Codec
	// Offset is the block's offset in the blob, Len its stored and RawLen its decompressed length, in bytes.
	Offset uint64
	Len    uint32
	RawLen uint32
	// CRC is the CRC32C of the stored bytes.
	CRC uint32
}

// NewBuilder starts a blob. class is the retention class in hours; region is the region that owns the store, empty for the local
// one; created is in Unix microseconds.
func NewBuilder(id pointer.BlobID, class uint32, region string, created int64) *Builder {
	b := &Builder{
		blobIdentity: blobIdentity{id: id, class: class, region: region, created: created},
		blockEnd:     HeaderLen,
		version:      plainVersion,
		categories:   map[uint32]categoryIndex{},
		positions:    map[logPosition]struct{}{},
	}
	if f := b.validateIdentity(0); f != nil {
		b.addError("%s: %s", f.what, f.reason)
	}
	return b
}

// SetHistory sets the writer's history of its earlier blobs. The exceptions must not be changed until Finish has returned.
func (b *Builder) SetHistory(h History) {
	b.history = h
	if err := h.validateHistory(); err != nil {
		b.addError("%v", err)
	}
}

func (b *Builder) addError(format string, args ...any) {
	const limit = 20 // one mistake of the caller can occur in each of 100,000 entries
	if len(b.errs) < limit {
		b.errs = append(b.errs, fmt.Errorf("%w %s: %s", ErrInvalid, b.id, fmt.Sprintf(format, args...)))
	}
}

// AddBlock adds a block and returns its number, from 0. stored is the compressed block of rawLen bytes; it must not change until
// the Put of the blob has returned.
func (b *Builder) AddBlock(codec pointer.Codec, stored []byte, rawLen int) (block int) {
	block = len(b.blocks)
	if block == MaxBlocks {
		b.addError("more than %d blocks", MaxBlocks)
	}
	if len(stored) > pointer.MaxBlockLen || rawLen < 0 || rawLen > pointer.MaxBlockRaw {
		b.addError("block %d: %d stored and %d raw bytes, the limits are %d and %d",
			block, len(stored), rawLen, pointer.MaxBlockLen, pointer.MaxBlockRaw)
		stored, rawLen = nil, 0
	}
	if codec.IsEncrypted() {
		b.version = Version
	}
	v := Block{
		Codec: codec, Offset: b.blockEnd, Len: uint32(len(stored)), RawLen: uint32(rawLen), CRC: record.CRC(stored),
	}
	b.blocks = append(b.blocks, v)
	b.stored = append(b.stored, stored)
	b.blockEnd += uint64(len(stored))

	s := append(b.blockSection, byte(v.Codec))
	s = binary.AppendUvarint(s, uint64(v.Len))
	s = binary.AppendUvarint(s, uint64(v.RawLen))
	b.blockSection = binary.LittleEndian.AppendUint32(s, v.CRC)
	return block
}

// AddPayload adds the payload of length bytes at offset in the decompressed block. The caller sets Frames, Messages, MinTime,
// MaxTime and Sequences of e.Pointer; AddPayload sets the rest. It returns the complete pointer, which may be appended to
// e.Shard, only at e.LSN, once the blob is durable. Each position (shard and LSN) is used once.
func (b *Builder) AddPayload(block int, offset, length uint32, e Entry) pointer.Pointer {
	p := e.Pointer
	p.Blob, p.Class, p.Region = b.id, b.class, b.region
	p.Offset, p.Length = offset, length
	if block < 0 || block >= len(b.blocks) {
		b.addError("payload %d: there is no block %d", b.entries, block)
		return p
	}
	setBlock(&p, &b.blocks[block])
	b.checkEntry(&e, &p)

	c, known := b.categories[e.Shard.Category()]
	if !known {
		c = categoryIndex{index: len(b.categories), name: e.Category}
		b.categories[e.Shard.Category()] = c
		b.categorySection = binary.AppendUvarint(b.categorySection, uint64(e.Shard.Category()))
		b.categorySection = binary.AppendUvarint(b.categorySection, uint64(len(e.Category)))
		b.categorySection = append(b.categorySection, e.Category...)
		b.categorySection = appendSettings(b.categorySection, e.Settings)
	} else if c.name != e.Category {
		b.addError("payload %d: category %d is %q and %q", b.entries, e.Shard.Category(), c.name, e.Category)
	}
	b.positions[logPosition{e.Shard, e.LSN}] = struct{}{}
	b.entries++
	b.entrySection = appendEntry(b.entrySection, c.index, block, b.created, &e, &p)
	return p
}

func setBlock(p *pointer.Pointer, v *Block) {
	p.Codec, p.BlockOffset, p.BlockLen, p.BlockRawLen, p.BlockCRC = v.Codec, v.Offset, v.Len, v.RawLen, v.CRC
}

func (b *Builder) checkEntry(e *Entry, p *pointer.Pointer) {
	if err := p.Validate(); err != nil {
		b.addError("payload %d: %v", b.entries, err)
	}
	if err := record.ValidateCategory(e.Category); err != nil {
		b.addError("payload %d: %v", b.entries, err)
	}
	if e.Epoch == 0 {
		b.addError("payload %d of shard %v: epoch 0: the shard was not opened", b.entries, e.Shard)
	}
	if e.LSN < record.FirstLSN {
		b.addError("payload %d of shard %v: LSN %d, the first is %d", b.entries, e.Shard, e.LSN, record.FirstLSN)
	}
	if e.Start > e.LSN {
		b.addError("payload %d of shard %v: LSN %d, its epoch begins at %d", b.entries, e.Shard, e.LSN, e.Start)
	}
	if e.Settings != nil && (e.Settings.Retention < 0 || e.Settings.Retention%time.Microsecond != 0) {
		b.addError("payload %d: category %q has the retention %v", b.entries, e.Category, e.Settings.Retention)
	}
	if _, twice := b.positions[logPosition{e.Shard, e.LSN}]; twice {
		b.addError("payload %d of shard %v: LSN %d is there twice", b.entries, e.Shard, e.LSN)
	}
	if b.entries >= MaxEntries {
		b.addError("more than %d payloads", MaxEntries)
	}
}

func (b *Builder) footerLen() int {
	n := len(footerPrefix(b.blobIdentity, &b.history))
	n += field.UvarintLen(uint64(len(b.blocks))) + len(b.blockSection)
	n += field.UvarintLen(uint64(len(b.categories))) + len(b.categorySection)
	return n + field.UvarintLen(uint64(b.entries)) + len(b.entrySection)
}

// Size returns the length in bytes of the blob if it ended here.
func (b *Builder) Size() int64 { return int64(b.blockEnd) + int64(b.footerLen()) + TrailerLen }

// Finish returns the parts of the blob for one Put: header, blocks, and footer with trailer. The error lists all invalid input of
// the builder and wraps [ErrInvalid]. The blocks are the slices that AddBlock was given.
func (b *Builder) Finish() ([][]byte, error) {
	if b.entries == 0 {
		b.addError("no payloads")
	}
	footer := footerPrefix(b.blobIdentity, &b.history)
	footer = binary.AppendUvarint(footer, uint64(len(b.blocks)))
	footer = append(footer, b.blockSection...)
	footer = binary.AppendUvarint(footer, uint64(len(b.categories)))
	footer = append(footer, b.categorySection...)
	footer = binary.AppendUvarint(footer, uint64(b.entries))
	footer = append(footer, b.entrySection...)
	if len(footer) > MaxFooter {
		b.addError("the footer of %d payloads has %d bytes, the limit is %d", b.entries, len(footer), MaxFooter)
	}
	if b.Size() > pointer.MaxBlobLen {
		b.addError("%d bytes, the limit is %d", b.Size(), int64(pointer.MaxBlobLen))
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	parts := make([][]byte, 0, len(b.stored)+2)
	parts = append(parts, encodeHeader(b.blobIdentity, b.version))
	parts = append(parts, b.stored...)
	end := encodeTrailer(blobTrailer{footerOffset: b.blockEnd, footerLen: uint32(len(footer)), footerCRC: record.CRC(footer)}, b.version)
	return append(parts, append(footer, end...)), nil
}
