package sequenced

import (
	"cmp"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Change is a record of the log of positions. If the positions do not fit one record, they are in several, which are appended
// together.
type Change struct {
	// Whole says that the change has all positions, not only the changed ones.
	Whole bool
	// Part is the index of this part among Parts, from 0.
	Part, Parts uint32
	// Next is the LSN that the next record of the sequenced log gets, Offset the number of the next message, Horizon the horizon
	// of the last record.
	Next    record.LSN
	Offset  uint64
	Horizon int64
	// At are the LSNs to be sequenced next, by source; sorted, each source at most once.
	At []Position
}

// Position is the position of a source: LSN is the first one that was not sequenced.
type Position struct {
	Shard record.ShardID
	LSN   record.LSN
}

// Flags of a change.
const flagWhole = 1

// maxParts bounds the records of one state. Positions are bounded by the limit of a read stream, 100,000.
const maxParts = 1000

// maxPosition bounds a position's encoded form; maxHead the fields around the positions.
const (
	maxPosition = 10 + 10
	maxHead     = 2 + 5 + 5 + 10 + 10 + 10 + 5 + crcLen
	// perPart is the largest number of positions in a part.
	perPart = (MaxLen - maxHead) / maxPosition
)

// AppendChange appends the encoded form of c to dst.
func AppendChange(dst []byte, c *Change) []byte {
	start := len(dst)
	flags := byte(0)
	if c.Whole {
		flags |= flagWhole
	}
	dst = append(dst, Version, flags)
	dst = binary.AppendUvarint(dst, uint64(c.Part))
	dst = binary.AppendUvarint(dst, uint64(c.Parts))
	dst = binary.AppendUvarint(dst, uint64(c.Next))
	dst = binary.AppendUvarint(dst, c.Offset)
	dst = binary.AppendUvarint(dst, uint64(c.Horizon))
	dst = binary.AppendUvarint(dst, uint64(len(c.At)))
	previous := uint64(0)
	for _, p := range c.At {
		low := uint64(uint32(p.Shard)) //nolint:gosec // the logical shard and the slot
		dst = binary.AppendUvarint(dst, low-previous)
		dst = binary.AppendUvarint(dst, uint64(p.LSN))
		previous = low
	}
	return binary.LittleEndian.AppendUint32(dst, record.CRC(dst[start:]))
}

// DecodeChange decodes all of b, the output of [AppendChange], as a record of the log of a category. The errors match
// [ErrCorrupt] and [ErrVersion].
func DecodeChange(category uint32, b []byte) (Change, error) {
	body, err := openRecord(b)
	if err != nil {
		return Change{}, err
	}
	if body[1]&^flagWhole != 0 {
		return Change{}, corruptRecord("flags %#x are unknown", body[1])
	}
	c := Change{Whole: body[1]&flagWhole != 0}
	r := field.NewReader(body, 2)
	c.Part = uint32(r.Uvarint("part", maxParts))
	c.Parts = uint32(r.Uvarint("parts", maxParts))
	c.Next = record.LSN(r.Uvarint("next LSN", math.MaxUint64-1))
	c.Offset = r.Uvarint("next offset", math.MaxUint64-1)
	c.Horizon = int64(r.Uvarint("horizon", math.MaxInt64))
	n := r.Count("positions", perPart, 2)
	c.At = readPositions(&r, category, n)
	r.End()
	if e := r.Err(); e != nil {
		return Change{}, corruptRecord("%v", e)
	}
	if c.Part >= c.Parts || c.Next < record.FirstLSN {
		return Change{}, corruptRecord("part %d of %d, next LSN %d", c.Part, c.Parts, c.Next)
	}
	return c, nil
}

func readPositions(r *field.Reader, category uint32, n int) []Position {
	if n == 0 {
		return nil
	}
	out := make([]Position, n)
	low := uint64(0)
	for i := range out {
		step := r.Uvarint("source", math.MaxUint32-low)
		if i > 0 && step == 0 {
			r.Fail("source", "it is there twice")
		}
		low += step
		shard := record.ShardID(category)<<32 | record.ShardID(low)
		lsn := record.LSN(r.Uvarint("LSN", math.MaxUint64-1))
		if Reserved(shard) || lsn < record.FirstLSN {
			r.Fail("position", "LSN %d of source %v", lsn, shard)
		}
		out[i] = Position{Shard: shard, LSN: lsn}
	}
	return out
}

// State is the state of a category's sequencing.
type State struct {
	// Next is the LSN that the next record of the sequenced log gets.
	Next record.LSN
	// Offset is the number of the next message.
	Offset uint64
	// Horizon is the horizon of the last record.
	Horizon int64
	// At are the LSNs to be sequenced next, by source. A missing source is sequenced from its first LSN.
	At map[record.ShardID]record.LSN
}

// NewState returns the state of a category without sequenced pointers.
func NewState() *State { return &State{Next: record.FirstLSN, At: map[record.ShardID]record.LSN{}} }

// Position returns the LSN of a source to be sequenced next.
func (s *State) Position(source record.ShardID) record.LSN {
	return max(s.At[source], record.FirstLSN)
}

// Whole returns the records with all of s.
func (s *State) Whole() [][]byte {
	all := slices.SortedFunc(func(yield func(Position) bool) {
		for shard, lsn := range s.At {
			if !yield(Position{shard, lsn}) {
				return
			}
		}
	}, byShard)
	return s.encodeState(true, all)
}

// Changed returns the records with the changed positions of s, those of the given sources.
func (s *State) Changed(sources map[record.ShardID]struct{}) [][]byte {
	at := make([]Position, 0, len(sources))
	for shard := range maps.Keys(sources) {
		at = append(at, Position{shard, s.Position(shard)})
	}
	slices.SortFunc(at, byShard)
	return s.encodeState(false, at)
}

func byShard(a, b Position) int { return cmp.Compare(a.Shard, b.Shard) }

func (s *State) encodeState(whole bool, at []Position) [][]byte {
	parts := max((len(at)+perPart-1)/perPart, 1)
	out := make([][]byte, parts)
	for i := range out {
		part := at[min(i*perPart, len(at)):min((i+1)*perPart, len(at))]
		out[i] = AppendChange(nil, &Change{
			Whole: whole, Part: uint32(i), Parts: uint32(parts), //nolint:gosec // bounded by maxParts
			Next: s.Next, Offset: s.Offset, Horizon: s.Horizon, At: part,
		})
	}
	return out
}

// Reader builds a State from the records of the log of positions, given in order.
type Reader struct {
	category uint32
	state    *State
	// open is an incomplete set of records; part is the index of the next one.
	open *State
	part uint32
}

// NewReader returns a reader for a category's log.
func NewReader(category uint32) *Reader { return &Reader{category: category} }

// Add adds the next record. The first record must begin a whole state: the log is trimmed only to such records.
func (r *Reader) Add(b []byte) error {
	c, err := DecodeChange(r.category, b)
	if err != nil {
		return err
	}
	if c.Part != r.part {
		return corruptRecord("part %d of %d stands where part %d is due", c.Part, c.Parts, r.part)
	}
	if c.Part == 0 {
		switch {
		case c.Whole:
			r.open = NewState()
		case r.state == nil:
			return corruptRecord("the first record changes a state that is not there")
		default:
			r.open = r.state
		}
	}
	for _, p := range c.At {
		r.open.At[p.Shard] = p.LSN
	}
	r.open.Next, r.open.Offset, r.open.Horizon = c.Next, c.Offset, c.Horizon
	if r.part++; r.part == c.Parts {
		r.state, r.open, r.part = r.open, nil, 0
	}
	return nil
}

// State returns the state read; nil if there was no whole state, or parts are missing.
func (r *Reader) State() *State {
	if r.part != 0 {
		return nil
	}
	return r.state
}
