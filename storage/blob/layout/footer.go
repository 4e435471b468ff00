package layout

import (
	"encoding/binary"
	"math"

	"scribe/internal/format/pointer"
	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Footer describes a blob.
type Footer struct {
	// Version is the format version of the blob.
	Version uint8
	ID      pointer.BlobID
	// Class is the retention class in hours.
	Class uint32
	// Region is the region that owns the blob; empty for the local one.
	Region string
	// Created is the creation time in Unix microseconds.
	Created int64
	// History is the writer's history of its earlier blobs; zero in version 1.
	History History
	// Blocks are in the order of the blob, without gaps.
	Blocks []Block
	// Entries are in the order in which they were added.
	Entries []Entry
}

// footerPrefix is the first section of the footer.
func footerPrefix(v blobIdentity, h *History) []byte {
	b := make([]byte, 0, 256)
	b = append(b, v.id[:]...)
	b = binary.AppendUvarint(b, uint64(v.class))
	b = binary.AppendUvarint(b, uint64(len(v.region)))
	b = append(b, v.region...)
	b = binary.AppendVarint(b, v.created)
	return appendHistory(b, h)
}

// appendEntry appends a payload's entry in the footer. It omits the parts of the pointer that follow from blob, block and
// category.
func appendEntry(dst []byte, category, block int, created int64, e *Entry, p *pointer.Pointer) []byte {
	dst = binary.AppendUvarint(dst, uint64(category))
	dst = binary.AppendUvarint(dst, uint64(e.Shard.Logical()))
	dst = binary.AppendUvarint(dst, uint64(e.Shard.Writer()))
	dst = binary.AppendUvarint(dst, e.Epoch)
	dst = binary.AppendUvarint(dst, uint64(e.LSN))
	dst = binary.AppendUvarint(dst, uint64(e.LSN-e.Start))
	flags := byte(0)
	if e.Predicted {
		flags |= flagPredicted
	}
	dst = append(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(block))
	dst = binary.AppendUvarint(dst, uint64(p.Offset))
	dst = binary.AppendUvarint(dst, uint64(p.Length))
	dst = binary.AppendUvarint(dst, uint64(p.Frames))
	dst = binary.AppendUvarint(dst, uint64(p.Messages))
	// Differences wrap at 64 bits, when encoding and decoding, so every pair of times has one.
	dst = binary.AppendVarint(dst, p.MinTime-created)
	dst = binary.AppendUvarint(dst, uint64(p.MaxTime)-uint64(p.MinTime))
	return pointer.AppendSequences(dst, p.Sequences)
}

// flagPredicted says that an entry's position was predicted.
const flagPredicted = 0x01

// The least sizes of a block, a category and an entry in bytes, in any version.
const (
	minBlockLen    = 1 + 2 + 4
	minCategoryLen = 3
	minEntryLen    = 13
)

// decodeFooter decodes a footer with a valid checksum, of a blob whose blocks end at blockEnd. Whatever it refuses was written
// that way.
func decodeFooter(version uint8, b []byte, blockEnd uint64) (*Footer, *partDamage) {
	r := field.NewReader(b, 0)
	f := &Footer{Version: version}
	if id := r.Take("blob id", uint64(len(f.ID))); id != nil {
		f.ID = pointer.BlobID(id)
	}
	f.Class = r.Uint32("class")
	f.Region = string(r.Sized("region", pointer.MaxRegion))
	f.Created = r.Varint("time of creation")
	if r.Err() == nil {
		if bad := f.blobIdentity().validateIdentity(0); bad != nil {
			return nil, bad
		}
	}
	if version >= 2 {
		f.History = readHistory(&r)
	}
	f.readBlocks(&r, blockEnd)
	f.readEntries(&r, version, readCategories(&r, version))
	r.End()
	if e := r.Err(); e != nil {
		return nil, damagef("footer: "+e.What, e.Offset, "%s", e.Reason)
	}
	return f, nil
}

func (f *Footer) blobIdentity() *blobIdentity {
	return &blobIdentity{id: f.ID, class: f.Class, region: f.Region, created: f.Created}
}

func (f *Footer) readBlocks(r *field.Reader, end uint64) {
	n := r.Count("blocks", MaxBlocks, minBlockLen)
	f.Blocks = make([]Block, n)
	at := uint64(HeaderLen)
	for i := range f.Blocks {
		v := &f.Blocks[i]
		v.Codec = pointer.Codec(r.Fixed8("codec"))
		if v.Codec.IsEncrypted() && f.Version <= plainVersion {
			r.Fail("codec", "%s in version %d", v.Codec, f.Version)
		}
		v.Offset = at
		v.Len = r.Uint32("block length")
		v.RawLen = r.Uint32("raw block length")
		v.CRC = r.Fixed32("block checksum")
		at += uint64(v.Len)
	}
	if r.Err() == nil && at != end {
		r.Fail("blocks", "end at byte %d of the blob, but the footer begins at %d", at, end)
	}
}

// shardCategory is a row of the footer's table of categories.
type shardCategory struct {
	id       uint32
	name     string
	settings *Settings
}

func readCategories(r *field.Reader, version uint8) []shardCategory {
	n := r.Count("categories", MaxEntries, minCategoryLen)
	out := make([]shardCategory, n)
	seen := make(map[uint32]bool, n)
	for i := range out {
		c := &out[i]
		c.id = r.Uint32("category id")
		c.name = string(r.Sized("category", record.MaxCategoryName))
		if version >= 2 {
			c.settings = readSettings(r)
		}
		if r.Err() != nil {
			return nil
		}
		if err := record.ValidateCategory(c.name); err != nil {
			r.Fail("category", "%v", err)
		}
		if seen[c.id] {
			r.Fail("category id", "%d is repeated", c.id)
		}
		seen[c.id] = true
	}
	return out
}

func (f *Footer) readEntries(r *field.Reader, version uint8, categories []shardCategory) {
	n := r.Count("payloads", MaxEntries, minEntryLen)
	if n == 0 {
		r.Fail("payloads", "missing")
		return
	}
	f.Entries = make([]Entry, n)
	used := 0
	positions := make(map[logPosition]struct{}, n)
	for i := range f.Entries {
		e := &f.Entries[i]
		// Categories are in the order of their first use: a list of payloads has exactly one table.
		c := int(r.Uvarint("payload's category", uint64(max(0, min(used, len(categories)-1)))))
		logical := uint16(r.Uvarint("logical shard", math.MaxUint16))
		writer := uint16(r.Uvarint("writer slot", math.MaxUint16))
		e.Epoch = r.Uvarint("epoch", math.MaxUint64)
		e.LSN = record.LSN(r.Uvarint("LSN", math.MaxUint64))
		if version >= 2 {
			readPosition(r, e)
		}
		f.readPointer(r, &e.Pointer)
		if r.Err() != nil || len(categories) == 0 {
			r.Fail("categories", "missing")
			return
		}
		used = max(used, c+1)
		e.Category, e.Settings = categories[c].name, categories[c].settings
		e.Shard = record.MakeShardID(categories[c].id, logical, writer)
		at := logPosition{e.Shard, e.LSN}
		if _, twice := positions[at]; twice || e.Epoch == 0 || e.LSN < record.FirstLSN {
			r.Fail("payload", "%d: LSN %d of shard %v in epoch %d is repeated or invalid", i, e.LSN, e.Shard, e.Epoch)
			return
		}
		positions[at] = struct{}{}
		if err := e.Pointer.Validate(); err != nil {
			r.Fail("payload", "%d of shard %v: %v", i, e.Shard, err)
			return
		}
	}
	if used != len(categories) {
		r.Fail("categories", "%d of %d are not used", len(categories)-used, len(categories))
	}
}

// readPosition reads version 2's description of an entry's position.
func readPosition(r *field.Reader, e *Entry) {
	since := r.Uvarint("LSNs of the epoch", uint64(e.LSN))
	e.Start = e.LSN - record.LSN(since)
	switch flags := r.Fixed8("flags"); {
	case flags&^flagPredicted != 0:
		r.Fail("flags", "%#x", flags)
	default:
		e.Predicted = flags&flagPredicted != 0
	}
}

func (f *Footer) readPointer(r *field.Reader, p *pointer.Pointer) {
	p.Blob, p.Class, p.Region = f.ID, f.Class, f.Region
	block := int(r.Uvarint("payload's block", uint64(max(0, len(f.Blocks)-1))))
	p.Offset = r.Uint32("offset")
	p.Length = r.Uint32("length")
	p.Frames = r.Uint32("frames")
	p.Messages = r.Uint32("messages")
	p.MinTime = f.Created + r.Varint("smallest time")
	p.MaxTime = pointer.ReadLater(r, "largest time", p.MinTime)
	p.Sequences = pointer.ReadSequences(r)
	if r.Err() != nil {
		return
	}
	if len(f.Blocks) == 0 {
		r.Fail("blocks", "missing")
		return
	}
	setBlock(p, &f.Blocks[block])
}
