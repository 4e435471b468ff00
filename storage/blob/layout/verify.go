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

// maxFaults bounds what Verify reports: one lost range shows in every payload of it.
const maxFaults = 100

// Verify reads the whole blob under key and checks all of it: header, footer and trailer, every block's checksum and decompression,
// every frame of every payload with its checksums, and that the footer tells the truth about them: category, logical shard, counts,
// times and sequences. Every byte of a blob is covered by a checksum, so no changed byte passes.
//
// It returns nil or all faults (the first 100 of them), as joined [DamageError] values, or a [VersionError], or the first error of
// the store. It holds one block at a time in memory.
func Verify(ctx context.Context, store blob.Store, key string) error {
	v := verifier{ctx: ctx, store: store, key: key}
	if err := v.run(); err != nil {
		return err
	}
	if v.more > 0 {
		v.faults = append(v.faults, fmt.Errorf("layout: blob %s: %d more faults: %w", key, v.more, ErrDamaged))
	}
	return errors.Join(v.faults...)
}

type verifier struct {
	ctx    context.Context
	store  blob.Store
	key    string
	faults []error
	more   int
}

// damage keeps a fault.
func (v *verifier) damage(what string, offset int64, cause error, format string, args ...any) {
	v.keep(&DamageError{Key: v.key, What: what, Offset: offset, Reason: fmt.Sprintf(format, args...), Err: cause})
}

func (v *verifier) keep(err *DamageError) {
	if len(v.faults) == maxFaults {
		v.more++
		return
	}
	v.faults = append(v.faults, err)
}

// take keeps an error that is damage and returns any other one.
func (v *verifier) take(err error) error {
	if d := (*DamageError)(nil); errors.As(err, &d) {
		v.keep(d)
		return nil
	}
	return err
}

// run returns what keeps it from looking further.
func (v *verifier) run() error {
	footer, size, err := readFooter(v.ctx, v.store, v.key, -1)
	if err := v.take(err); err != nil {
		return err
	}
	if size < HeaderLen+TrailerLen {
		return nil // which is a fault already
	}
	if err := v.header(footer); err != nil {
		return err
	}
	if footer == nil {
		return nil // nobody knows where blocks are
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
			continue // which no payload refers to
		}
		if raw, err = v.block(footer, i, payloads[b.Offset], raw); err != nil {
			return err
		}
	}
	return nil
}

// header compares the header with the footer, if there is one.
func (v *verifier) header(footer *Footer) error {
	b := make([]byte, HeaderLen)
	if err := readAt(v.ctx, v.store, v.key, b, 0, "header"); err != nil {
		return v.take(err)
	}
	head, version, bad := decodeHeader(b)
	switch {
	case bad != nil:
		v.keep(bad.in(v.key, 0))
	case version > Version:
		return &VersionError{Key: v.key, Version: version, Supported: Version}
	case footer != nil && head != *footer.identity():
		v.damage("header", 0, nil, "it is of blob %s of region %q, created at %d; the footer is of blob %s of region %q, created at %d",
			pointer.Key(head.class, head.id), head.region, head.created,
			pointer.Key(footer.Class, footer.ID), footer.Region, footer.Created)
	}
	return nil
}

// block checks a block and the payloads in it, which are numbers of entries. It returns its buffer for the next one.
func (v *verifier) block(footer *Footer, number int, payloads []int, raw []byte) ([]byte, error) {
	var (
		b     = &footer.Blocks[number]
		start = int64(b.Offset)
		name  = fmt.Sprintf("block %d", number)
	)
	stored := make([]byte, b.Len)
	if err := readAt(v.ctx, v.store, v.key, stored, start, name); err != nil {
		return raw, v.take(err)
	}
	if computed := record.CRC(stored); computed != b.CRC {
		v.damage(name+" checksum", start, nil, "stored %#08x, computed %#08x, %d payloads are in it", b.CRC, computed, len(payloads))
		return raw, nil
	}
	out, err := Decompress(raw, b.Codec, stored, int(b.RawLen))
	if err != nil {
		v.damage(name, start, err, "it can't be decompressed")
		return raw, nil
	}
	slices.SortFunc(payloads, func(i, j int) int {
		return cmp.Compare(footer.Entries[i].Pointer.Offset, footer.Entries[j].Pointer.Offset)
	})
	end := uint32(0)
	for _, i := range payloads {
		e := &footer.Entries[i]
		if e.Pointer.Offset < end {
			v.damage(fmt.Sprintf("payload %d", i), start, nil, "it begins at byte %d of block %d, before the one in front of it ends at %d",
				e.Pointer.Offset, number, end)
		}
		end = max(end, e.Pointer.Offset+e.Pointer.Length)
		payload, err := Payload(out, &e.Pointer)
		if err != nil {
			v.damage(fmt.Sprintf("payload %d", i), start, err, "it is outside of block %d", number)
			continue
		}
		v.payload(i, e, payload)
	}
	return out, nil
}

// contents is what the frames of a payload say of it.
type contents struct {
	frames, messages uint32
	minTime, maxTime int64
	runs             []pointer.Sequence
}

// payload checks the frames of a payload and compares them with its entry.
func (v *verifier) payload(number int, e *Entry, payload []byte) {
	got := contents{minTime: math.MaxInt64, maxTime: math.MinInt64}
	fault := func(at int, cause error, format string, args ...any) {
		what := fmt.Sprintf("payload %d of shard %v, LSN %d, frame %d", number, e.Shard, e.LSN, got.frames)
		v.damage(what, int64(e.Pointer.BlockOffset), cause, "at byte %d of the decompressed block: %s",
			int(e.Pointer.Offset)+at, fmt.Sprintf(format, args...))
	}
	for at := 0; at < len(payload); {
		h, err := record.Check(payload[at:])
		if err != nil {
			fault(at, err, "the frame is damaged")
			return // where the next one begins is not known
		}
		if string(h.Category) != e.Category {
			fault(at, nil, "it is of category %q, the payload of %q", h.Category, e.Category)
		}
		if h.Shard != uint32(e.Shard.Logical()) {
			fault(at, nil, "it is of logical shard %d, the payload of %d", h.Shard, e.Shard.Logical())
		}
		got.add(&h)
		at += h.Len
	}
	p := &e.Pointer
	mismatch := func(field string, got, want any) {
		v.damage(fmt.Sprintf("payload %d of shard %v, LSN %d", number, e.Shard, e.LSN), int64(p.BlockOffset), nil,
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
	// Only where sequences are checked, in exactly_once categories, do pointers carry them.
	if a, b := merged(got.runs), merged(p.Sequences); len(b) > 0 && !slices.Equal(a, b) {
		mismatch("sequences", a, b)
	}
}

func (c *contents) add(h *record.Header) {
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

// merged returns runs in a form that does not depend on how they were cut: sorted, and those that touch or overlap as one.
func merged(runs []pointer.Sequence) []pointer.Sequence {
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
