package checkpoint

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"scribe/internal/format/pointer/field"
	"scribe/internal/format/record"
)

// Version is the version that this build writes, and the newest that it reads.
const Version = 1

// Limits of the format.
const (
	// MaxPositions bounds the shards of a checkpoint.
	MaxPositions = 100_000
	// MaxText bounds the text in bytes. MaxPositions positions of any value fit.
	MaxText = 4 << 20
)

// prefix is the beginning of every text; its number is the version.
const prefix = "scribe1."

// encoding is strict, so that a text whose unused last bits were changed is refused too.
var encoding = base64.RawURLEncoding.Strict()

// Position is a reader's position in a physical shard.
type Position struct {
	Shard record.ShardID
	// LSN is the LSN of the next pointer to read; the first of a log is [record.FirstLSN].
	LSN record.LSN
	// Skip is the number of messages of that pointer's payload that were already delivered.
	Skip uint32
}

// Checkpoint is a position in a category.
type Checkpoint struct {
	// Category is the name, CategoryID the id. A category that was deleted and created again has another id, and its positions
	// have another meaning.
	Category   string
	CategoryID uint32
	// Positions are sorted by shard, each shard of the category at most once.
	Positions []Position
	// Watermark is the persisted time, in Unix microseconds, that the reader had reached; 0 if unknown.
	Watermark int64
}

// Position returns the position of a shard.
func (c Checkpoint) Position(shard record.ShardID) (Position, bool) {
	i, ok := slices.BinarySearchFunc(c.Positions, shard, func(p Position, s record.ShardID) int { return cmp.Compare(p.Shard, s) })
	if !ok {
		return Position{}, false
	}
	return c.Positions[i], true
}

// Validate returns every violation that would make Parse refuse c, as joined [ErrInvalid] errors.
func (c Checkpoint) Validate() error {
	var errs []error
	refuse := func(what, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w %s: %s", ErrInvalid, what, fmt.Sprintf(format, args...)))
	}
	if err := record.ValidateCategory(c.Category); err != nil {
		refuse("category", "%v", err)
	}
	if len(c.Positions) > MaxPositions {
		refuse("positions", "%d, the limit is %d", len(c.Positions), MaxPositions)
	}
	for i, p := range c.Positions {
		switch {
		case p.Shard.Category() != c.CategoryID:
			refuse("shard", "%v is not of category %d", p.Shard, c.CategoryID)
		case i > 0 && p.Shard <= c.Positions[i-1].Shard:
			refuse("shard", "%v follows %v: positions are sorted by shard, each at most once", p.Shard, c.Positions[i-1].Shard)
		case p.LSN < record.FirstLSN:
			refuse("LSN", "%d in shard %v, the first is %d", p.LSN, p.Shard, record.FirstLSN)
		}
	}
	return errors.Join(errs...)
}

// String returns the text of the checkpoint. It does not check c: see [Checkpoint.Validate].
func (c Checkpoint) String() string {
	b := make([]byte, 0, len(prefix)+len(c.Category)+16*len(c.Positions)+32)
	b = append(b, prefix...)
	b = binary.AppendUvarint(b, uint64(c.CategoryID))
	b = binary.AppendUvarint(b, uint64(len(c.Category)))
	b = append(b, c.Category...)
	b = binary.AppendVarint(b, c.Watermark)
	b = binary.AppendUvarint(b, uint64(len(c.Positions)))
	// The distance from the previous shard; for the first shard, from the category's lowest id.
	previous := record.MakeShardID(c.CategoryID, 0, 0)
	for _, p := range c.Positions {
		b = binary.AppendUvarint(b, uint64(p.Shard)-uint64(previous))
		b = binary.AppendUvarint(b, uint64(p.LSN))
		b = binary.AppendUvarint(b, uint64(p.Skip))
		previous = p.Shard
	}
	// The checksum covers the prefix too: a changed version is damage, not another version.
	b = binary.LittleEndian.AppendUint32(b, record.CRC(b))
	return prefix + encoding.EncodeToString(b[len(prefix):])
}

// Parse parses exactly the output of [Checkpoint.String]: the caller removes white space around it. The errors are [ErrCorrupt]
// and [ErrVersion].
func Parse(s string) (Checkpoint, error) {
	body, err := openText(s)
	if err != nil {
		return Checkpoint{}, err
	}
	var c Checkpoint
	r := field.NewReader(body, 0)
	c.CategoryID = r.Uint32("category id")
	c.Category = string(r.Sized("category", record.MaxCategoryName))
	c.Watermark = r.Varint("watermark")
	c.Positions = readPositions(&r, c.CategoryID)
	r.End()
	if e := r.Err(); e != nil {
		return Checkpoint{}, corruptText("%v", e)
	}
	// The checksum was valid, so whatever is refused here was written that way.
	if err := c.Validate(); err != nil {
		return Checkpoint{}, corruptText("%v", err)
	}
	return c, nil
}

// openText checks everything around the encoded fields and returns the fields.
func openText(s string) ([]byte, error) {
	if len(s) > MaxText {
		return nil, corruptText("%d bytes are over the limit of %d", len(s), MaxText)
	}
	text, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return nil, badPrefix(s)
	}
	// The decoder of package base64 skips line ends.
	if strings.ContainsAny(text, "\r\n") {
		return nil, corruptText("there is a line end in it")
	}
	b, err := encoding.DecodeString(text)
	if err != nil {
		return nil, corruptText("it was cut or changed: %v", err)
	}
	const crcLen = 4
	if len(b) < crcLen {
		return nil, corruptText("it was cut")
	}
	body := b[:len(b)-crcLen]
	summed := append(append(make([]byte, 0, len(prefix)+len(body)), prefix...), body...)
	if record.CRC(summed) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, corruptText("it was cut or changed: the checksum does not match")
	}
	return body, nil
}

// badPrefix tells a newer version from a text that is not a checkpoint.
func badPrefix(s string) error {
	rest, ok := strings.CutPrefix(s, "scribe")
	number, _, dot := strings.Cut(rest, ".")
	if ok && dot && len(number) <= 9 && number != "" && strings.Trim(number, "0123456789") == "" && number[0] != '0' {
		return fmt.Errorf("%w %s is newer than version %d, the newest that this build reads: upgrade the reader", ErrVersion, number, Version)
	}
	return corruptText("it does not begin with %q", prefix)
}

// minPositionLen is the least length of a position in bytes.
const minPositionLen = 3

func readPositions(r *field.Reader, category uint32) []Position {
	n := r.Count("positions", MaxPositions, minPositionLen)
	if n == 0 {
		return nil
	}
	out := make([]Position, n)
	shard := record.MakeShardID(category, 0, 0)
	highest := record.MakeShardID(category, math.MaxUint16, math.MaxUint16)
	for i := range out {
		shard += record.ShardID(r.Uvarint("shard", uint64(highest-shard)))
		out[i] = Position{Shard: shard, LSN: record.LSN(r.Uvarint("LSN", math.MaxUint64)), Skip: r.Uint32("skip")}
	}
	return out
}
