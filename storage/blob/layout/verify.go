package layout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
)

// maxFindings bounds Verify's findings: one lost range affects every payload in it.
const maxFindings = 100

// Verify reads the whole blob under key and checks all of it: header, footer and trailer, every block's checksum and
// decompression, every frame of every payload with its checksums, and that the footer describes them correctly: category, logical
// shard, counts, times and sequences. Every byte of a blob is covered by a checksum, so no changed byte passes.
//
// It returns nil or all damage (the first 100 findings), as joined [DamageError] values, or a [VersionError], or the first error
// of the store or of keys. It holds one block at a time in memory.
//
// keys decrypts encrypted blocks. Without it, or where the key was deleted, only their checksums are checked: closed says of how many blocks.
func Verify(ctx context.Context, store blob.Store, key string, keys Decrypter) (closed int, err error) {
	v := blobVerifier{ctx: ctx, store: store, key: key, keys: keys}
	if err := v.verifyBlob(); err != nil {
		return v.closed, err
	}
	if v.more > 0 {
		v.found = append(v.found, fmt.Errorf("layout: blob %s: %d more findings: %w", key, v.more, ErrDamaged))
	}
	return v.closed, errors.Join(v.found...)
}

// Decrypter decrypts blocks: encryption.Keys of package encryption.
type Decrypter interface {
	// DecryptBlock returns the block as it was before its encryption, of codec.Compression(), in new memory. An error that matches
	// [ErrDamaged] is damage, one that matches [ErrNoKey] says that the key was deleted.
	DecryptBlock(ctx context.Context, codec pointer.Codec, stored []byte, rawLen int) ([]byte, error)
}

type blobVerifier struct {
	ctx    context.Context
	store  blob.Store
	key    string
	keys   Decrypter
	found  []error
	more   int
	closed int
}

// addDamage adds a finding.
func (v *blobVerifier) addDamage(what string, offset int64, cause error, format string, args ...any) {
	v.addError(&DamageError{Key: v.key, What: what, Offset: offset, Reason: fmt.Sprintf(format, args...), Err: cause})
}

func (v *blobVerifier) addError(err *DamageError) {
	if len(v.found) == maxFindings {
		v.more++
		return
	}
	v.found = append(v.found, err)
}

// addIfDamage adds an error that is damage and returns any other.
func (v *blobVerifier) addIfDamage(err error) error {
	if d := (*DamageError)(nil); errors.As(err, &d) {
		v.addError(d)
		return nil
	}
	return err
}

// verifyBlob returns an error that ends the verification.
func (v *blobVerifier) verifyBlob() error {
	footer, size, err := readFooter(v.ctx, v.store, v.key, -1)
	if err := v.addIfDamage(err); err != nil {
		return err
	}
	if size < HeaderLen+TrailerLen {
		return nil // the damage is among the findings
	}
	if err := v.verifyHeader(footer); err != nil {
		return err
	}
	if footer == nil {
		return nil // the offsets of blocks are unknown
	}
	payloads := make(map[uint64][]int, len(footer.Blocks)) // by the offset of the block
	for i := range footer.Entries {
		at := footer.Entries[i].Pointer.BlockOffset
		payloads[at] = append(payloads[at], i)
	}
	var raw []byte
	for i := range footer.Blocks {
		b := &footer.Blocks[i]
		if b.Len == 0 {
			continue // no payload refers to it
		}
		if raw, err = v.verifyBlock(footer, i, payloads[b.Offset], raw); err != nil {
			return err
		}
	}
	return nil
}

// verifyHeader compares the header with the footer, if there is one.
func (v *blobVerifier) verifyHeader(footer *Footer) error {
	b := make([]byte, HeaderLen)
	if err := readAt(v.ctx, v.store, v.key, b, 0, "header"); err != nil {
		return v.addIfDamage(err)
	}
	head, version, bad := decodeHeader(b)
	switch {
	case bad != nil:
		v.addError(bad.damageError(v.key, 0))
	case version > Version:
		return &VersionError{Key: v.key, Version: version, Supported: Version}
	case footer != nil && head != *footer.blobIdentity():
		v.addDamage("header", 0, nil, "it is of blob %s of region %q, created at %d; the footer is of blob %s of region %q, created at %d",
			pointer.Key(head.class, head.id), head.region, head.created,
			pointer.Key(footer.Class, footer.ID), footer.Region, footer.Created)
	}
	return nil
}

// verifyBlock checks a block and its payloads, given as indexes of entries. It returns its buffer for reuse.
func (v *blobVerifier) verifyBlock(footer *Footer, number int, payloads []int, raw []byte) ([]byte, error) {
	var (
		b     = &footer.Blocks[number]
		start = int64(b.Offset)
		name  = fmt.Sprintf("block %d", number)
	)
	stored := make([]byte, b.Len)
	if err := readAt(v.ctx, v.store, v.key, stored, start, name); err != nil {
		return raw, v.addIfDamage(err)
	}
	if computed := record.CRC(stored); computed != b.CRC {
		v.addDamage(name+" checksum", start, nil, "stored %#08x, computed %#08x, %d payloads are in it", b.CRC, computed, len(payloads))
		return raw, nil
	}
	if b.Codec.IsEncrypted() {
		if v.keys == nil {
			v.closed++
			return raw, nil
		}
		opened, err := v.keys.DecryptBlock(v.ctx, b.Codec, stored, int(b.RawLen))
		switch {
		case errors.Is(err, ErrNoKey):
			v.closed++
			return raw, nil
		case errors.Is(err, ErrDamaged):
			v.addDamage(name, start, err, "cannot be decrypted")
			return raw, nil
		case err != nil:
			return raw, fmt.Errorf("layout: blob %s: decrypt %s: %w", v.key, name, err)
		}
		stored = opened
	}
	out, err := Decompress(raw, b.Codec.Compression(), stored, int(b.RawLen))
	if err != nil {
		v.addDamage(name, start, err, "cannot be decompressed")
		return raw, nil
	}
	slices.SortFunc(payloads, func(i, j int) int {
		return cmp.Compare(footer.Entries[i].Pointer.Offset, footer.Entries[j].Pointer.Offset)
	})
	end := uint32(0)
	for _, i := range payloads {
		e := &footer.Entries[i]
		if e.Pointer.Offset < end {
			v.addDamage(fmt.Sprintf("payload %d", i), start, nil, "it begins at byte %d of block %d, before the one in front of it ends at %d",
				e.Pointer.Offset, number, end)
		}
		end = max(end, e.Pointer.Offset+e.Pointer.Length)
		payload, err := Payload(out, &e.Pointer)
		if err != nil {
			v.addDamage(fmt.Sprintf("payload %d", i), start, err, "it is outside of block %d", number)
			continue
		}
		v.verifyPayload(i, e, payload)
	}
	return out, nil
}

// payloadContents is the description of a payload computed from its frames.
type payloadContents struct {
	frames, messages uint32
	minTime, maxTime int64
	runs             []pointer.Sequence
}

// verifyPayload checks the frames of a payload and compares them with its entry.
func (v *blobVerifier) verifyPayload(number int, e *Entry, payload []byte) {
	got := payloadContents{minTime: math.MaxInt64, maxTime: math.MinInt64}
	report := func(at int, cause error, format string, args ...any) {
		what := fmt.Sprintf("payload %d of shard %v, LSN %d, frame %d", number, e.Shard, e.LSN, got.frames)
		v.addDamage(what, int64(e.Pointer.BlockOffset), cause, "at byte %d of the decompressed block: %s",
			int(e.Pointer.Offset)+at, fmt.Sprintf(format, args...))
	}
	for at := 0; at < len(payload); {
		h, err := record.Check(payload[at:])
		if err != nil {
			report(at, err, "the frame is damaged")
			return // the offset of the next frame is unknown
		}
		if string(h.Category) != e.Category {
			report(at, nil, "category %q, but the payload is of %q", h.Category, e.Category)
		}
		if h.Shard != uint32(e.Shard.Logical()) {
			report(at, nil, "logical shard %d, but the payload is of %d", h.Shard, e.Shard.Logical())
		}
		got.addFrame(&h)
		at += h.Len
	}
	p := &e.Pointer
	mismatch := func(field string, got, want any) {
		v.addDamage(fmt.Sprintf("payload %d of shard %v, LSN %d", number, e.Shard, e.LSN), int64(p.BlockOffset), nil,
			"%s: the footer says %v, the frames %v", field, want, got)
	}
	if got.frames != p.Frames {
		mismatch("frames", got.frames, p.Frames)
	}
	if got.messages != p.Messages {
		mismatch("messages", got.messages, p.Messages)
	}
	if got.minTime != p.MinTime || got.maxTime != p.MaxTime {
		mismatch("times", [2]int64{got.minTime, got.maxTime}, [2]int64{p.MinTime, p.MaxTime})
	}
	// Pointers have sequences only if sequences are checked, in exactly_once categories.
	if a, b := mergeRuns(got.runs), mergeRuns(p.Sequences); len(b) > 0 && !slices.Equal(a, b) {
		mismatch("sequences", a, b)
	}
}

func (c *payloadContents) addFrame(h *record.Header) {
	c.frames++
	c.messages += uint32(h.Count)
	c.minTime = min(c.minTime, h.BaseTime)
	c.maxTime = max(c.maxTime, h.BaseTime)
	if h.Sequenced() {
		c.runs = append(c.runs, pointer.Sequence{
			Producer: h.Producer, Epoch: h.Epoch, First: h.FirstSequence, Last: h.NextSequence() - 1,
		})
	}
}

// mergeRuns normalizes runs, which may have been split anywhere: it sorts them and merges those that touch or overlap.
func mergeRuns(runs []pointer.Sequence) []pointer.Sequence {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b pointer.Sequence) int {
		return cmp.Or(cmp.Compare(a.Producer, b.Producer), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.First, b.First))
	})
	out := runs[:0]
	for _, r := range runs {
		if n := len(out) - 1; n >= 0 && out[n].Producer == r.Producer && out[n].Epoch == r.Epoch && r.First <= out[n].Last+1 {
			out[n].Last = max(out[n].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}
