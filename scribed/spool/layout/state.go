package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	// StateHeaderLen is the length of the state file's header; its two slots follow.
	StateHeaderLen = 4096
	// MinStateSlot is the least length of a slot.
	MinStateSlot = 4 << 10
	// MaxStateSlot is the largest length of a slot.
	MaxStateSlot  = 64 << 20
	slotHeaderLen = 40
	stateMagic    = "SPST"
	slotMagic     = "SPSL"
)

// Amount counts records, their messages, and the bytes of their data.
type Amount struct {
	Records, Messages, Bytes int64
}

// PositionRange is the range [From, To) of positions.
type PositionRange struct {
	From, To Position
}

// SpoolState is the content of the state file.
type SpoolState struct {
	// Generation grows with each save: the slot with the higher one is valid.
	Generation uint64
	// Next is a number that no segment has had.
	Next uint32
	// Saved is the time of the save, in Unix microseconds.
	Saved    int64
	Segments []StateSegment
	Dropped  []StateDropped
}

// StateSegment describes a segment at the time of the save, and its finished records.
type StateSegment struct {
	SegmentID
	// Footer is the sum of the segment's footer; 0 when it had none.
	Footer uint32
	// Held is the number of records that were neither done nor dropped.
	Held int64
	Done []StateDone
}

// StateDone describes the finished records of a category in a segment: those with a position in one of the spans. Amount is their
// sum. It is valid only for a segment with that footer, since a crash, damage, or a rewrite changes the records of a segment.
type StateDone struct {
	Category string
	Amount   Amount
	Spans    []PositionRange // in order; they do not touch
}

// StateDropped is the total amount dropped of a category.
type StateDropped struct {
	Category string
	Amount   Amount
}

// StateFileLen returns the length of a state file with slots of slot bytes.
func StateFileLen(slot int64) int64 { return StateHeaderLen + 2*slot }

// AppendStateHeader appends the header of a state file with slots of slot bytes.
func AppendStateHeader(dst []byte, slot int64) []byte {
	start := len(dst)
	dst = appendVersion(dst, stateMagic, Version)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(slot))
	dst = binary.LittleEndian.AppendUint32(dst, Checksum(dst[start:]))
	return append(dst, make([]byte, StateHeaderLen-16)...)
}

// AppendSlot appends a slot with the state, at most limit bytes. State that does not fit is left out: first the spans of the
// categories with the most of them, whose records are then given out again, then the drops. fitted is false when anything was
// left out. The caller writes the slot at StateHeaderLen + (Generation % 2) * slot.
func AppendSlot(dst []byte, s *SpoolState, limit int64) (out []byte, fitted bool) {
	start := len(dst)
	cut := s
	for {
		dst = appendSlotAll(dst[:start], cut)
		if int64(len(dst)-start) <= limit {
			return dst, cut == s
		}
		cut = cut.withoutLargest()
	}
}

// withoutLargest leaves out the larger half of the done spans, or half of the drops when there are none, or half of the segments.
func (s *SpoolState) withoutLargest() *SpoolState {
	out := *s
	most := 0
	for i := range s.Segments {
		for j := range s.Segments[i].Done {
			most = max(most, len(s.Segments[i].Done[j].Spans))
		}
	}
	switch {
	case most > 0:
		out.Segments = nil
		for _, g := range s.Segments {
			g.Done = slices.DeleteFunc(slices.Clone(g.Done), func(d StateDone) bool { return len(d.Spans) > most/2 })
			out.Segments = append(out.Segments, g)
		}
	case len(s.Dropped) > 0:
		out.Dropped = s.Dropped[:len(s.Dropped)/2]
	default:
		out.Segments = s.Segments[:len(s.Segments)/2]
	}
	return &out
}

func appendSlotAll(dst []byte, s *SpoolState) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, slotHeaderLen)...) // written when the body is known
	body := len(dst)
	dst = binary.AppendUvarint(dst, uint64(len(s.Segments)))
	for i := range s.Segments {
		g := &s.Segments[i]
		for _, v := range []uint64{uint64(g.First), uint64(g.Last), uint64(g.Generation), uint64(g.Footer), uint64(g.Held), uint64(len(g.Done))} {
			dst = binary.AppendUvarint(dst, v)
		}
		for j := range g.Done {
			d := &g.Done[j]
			dst = appendCounted(dst, d.Category, d.Amount)
			dst = binary.AppendUvarint(dst, uint64(len(d.Spans)))
			last := At(g.First, 0)
			for _, p := range d.Spans {
				dst = binary.AppendUvarint(dst, uint64(p.From-last))
				dst = binary.AppendUvarint(dst, uint64(p.To-p.From))
				last = p.To
			}
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Dropped)))
	for i := range s.Dropped {
		dst = appendCounted(dst, s.Dropped[i].Category, s.Dropped[i].Amount)
	}
	head := appendFixed(appendVersion(dst[start:start], slotMagic, Version), &slotHeader{
		Generation: s.Generation, BodyLen: uint32(len(dst) - body), Next: s.Next, Saved: s.Saved, BodyCRC: Checksum(dst[body:]),
	})
	binary.LittleEndian.AppendUint32(head, Checksum(head))
	return dst
}

// slotHeader is the header of a slot, as it is encoded between version and checksum.
type slotHeader struct {
	Generation    uint64
	BodyLen, Next uint32
	Saved         int64
	BodyCRC       uint32
}

func appendCounted(dst []byte, name string, a Amount) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.AppendUvarint(dst, uint64(a.Records))
	dst = binary.AppendUvarint(dst, uint64(a.Messages))
	return binary.AppendUvarint(dst, uint64(a.Bytes))
}

// StateFile is the result of ReadState.
type StateFile struct {
	// Slot is the length of a slot.
	Slot int64
	// State is the newer of the valid slots; nil when there is none.
	State *SpoolState
	// Damage lists what is wrong with the header or a slot; a slot that was never written is not damaged.
	Damage []error
}

// ReadState reads a state file. Damage is not an error; a newer version and errors of r are.
func ReadState(r io.ReaderAt) (*StateFile, error) {
	head := make([]byte, 16)
	if err := readAt(r, head, 0); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	f := &StateFile{}
	slot := int64(binary.LittleEndian.Uint32(head[8:]))
	if string(head[:4]) != stateMagic || Checksum(head[:12]) != binary.LittleEndian.Uint32(head[12:]) || slot < MinStateSlot || slot > MaxStateSlot {
		f.Damage = append(f.Damage, fmt.Errorf("%w: the header of the state file", ErrDamaged))
		return f, nil
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v != Version {
		return nil, fmt.Errorf("state file of version %d, known is %d: %w", v, Version, ErrVersion)
	}
	f.Slot = slot
	for i := range int64(2) {
		s, err := readSlot(r, StateHeaderLen+i*slot, slot)
		switch {
		case errors.Is(err, ErrDamaged):
			f.Damage = append(f.Damage, fmt.Errorf("slot %d of the state file: %w", i, err))
		case err != nil:
			return nil, err
		case s != nil && (f.State == nil || s.Generation > f.State.Generation):
			f.State = s
		}
	}
	return f, nil
}

// readSlot returns nil for a slot that was never written.
func readSlot(r io.ReaderAt, off, slot int64) (*SpoolState, error) {
	head := make([]byte, slotHeaderLen)
	if err := readAt(r, head, off); err != nil {
		return nil, err
	}
	if [slotHeaderLen]byte(head) == [slotHeaderLen]byte{} {
		return nil, nil
	}
	h, err := parseSlotHeader(head, slot)
	if err != nil {
		return nil, err
	}
	b := make([]byte, slotHeaderLen+int64(h.BodyLen))
	if err := readAt(r, b, off); err != nil {
		return nil, err
	}
	return ParseSlot(b)
}

func parseSlotHeader(b []byte, slot int64) (h slotHeader, err error) {
	if len(b) < slotHeaderLen || string(b[:4]) != slotMagic || Checksum(b[:36]) != binary.LittleEndian.Uint32(b[36:]) {
		return h, fmt.Errorf("%w: its header", ErrDamaged)
	}
	if v := binary.LittleEndian.Uint32(b[4:]); v != Version {
		return h, fmt.Errorf("state of version %d, known is %d: %w", v, Version, ErrVersion)
	}
	if parseFixed(b[8:36], &h); int64(h.BodyLen) > slot-slotHeaderLen {
		return h, fmt.Errorf("%w: its length", ErrDamaged)
	}
	return h, nil
}

// ParseSlot checks and decodes a slot. b may be longer. The error wraps ErrDamaged or ErrVersion.
func ParseSlot(b []byte) (*SpoolState, error) {
	h, err := parseSlotHeader(b, int64(len(b)))
	if err != nil {
		return nil, err
	}
	body := b[slotHeaderLen : slotHeaderLen+h.BodyLen]
	if Checksum(body) != h.BodyCRC {
		return nil, fmt.Errorf("%w: its checksum does not match", ErrDamaged)
	}
	s := &SpoolState{Generation: h.Generation, Next: h.Next, Saved: h.Saved}
	d := &slotDecoder{b: body}
	for range d.readCount(6) {
		s.Segments = append(s.Segments, d.readSegment())
	}
	for range d.readCount(4) {
		name, a := d.readCounted()
		s.Dropped = append(s.Dropped, StateDropped{name, a})
	}
	if d.bad || len(d.b) != 0 {
		return nil, fmt.Errorf("%w: it breaks a limit", ErrDamaged)
	}
	return s, nil
}

// slotDecoder reads a slot's body. After the first fault, everything reads as zero.
type slotDecoder struct {
	b   []byte
	bad bool
}

func (d *slotDecoder) fail() {
	d.b, d.bad = nil, true
}

func (d *slotDecoder) readNumber(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

// readCount reads the number of the following elements, of at least size bytes each.
func (d *slotDecoder) readCount(size int) int {
	n := d.readNumber(MaxStateSlot)
	if n > uint64(len(d.b)/size) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *slotDecoder) readCounted() (string, Amount) {
	if len(d.b) == 0 || len(d.b) < 1+int(d.b[0]) {
		d.fail()
		return "", Amount{}
	}
	n := 1 + int(d.b[0])
	name := string(d.b[1:n])
	d.b = d.b[n:]
	return name, Amount{Records: int64(d.readNumber(1<<63 - 1)), Messages: int64(d.readNumber(1<<63 - 1)), Bytes: int64(d.readNumber(1<<63 - 1))}
}

func (d *slotDecoder) readSegment() StateSegment {
	const u32 = 1<<32 - 1
	g := StateSegment{SegmentID: SegmentID{First: uint32(d.readNumber(u32)), Last: uint32(d.readNumber(u32)), Generation: uint32(d.readNumber(u32))}}
	g.Footer = uint32(d.readNumber(u32))
	g.Held = int64(d.readNumber(1<<63 - 1))
	if !g.valid() {
		d.fail()
	}
	for range d.readCount(5) {
		var done StateDone
		done.Category, done.Amount = d.readCounted()
		end, last := uint64(At(g.Last, u32)), uint64(At(g.First, 0))
		for i := range d.readCount(2) {
			gap := d.readNumber(end - last)
			from := last + gap
			n := d.readNumber(end + 1 - from)
			if n == 0 || i > 0 && gap == 0 {
				d.fail()
				return g
			}
			last = from + n
			done.Spans = append(done.Spans, PositionRange{Position(from), Position(last)})
			last = min(last, end)
		}
		g.Done = append(g.Done, done)
	}
	return g
}
