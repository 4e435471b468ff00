package pointer

import (
	"errors"
	"fmt"
	"math"
)

// ValidateRegion reports whether name is a valid name of a region: empty for the local one, else at most [MaxRegion] ASCII
// letters, digits, '.', '_' and '-', beginning with a letter or digit. The error is an [ErrInvalid].
func ValidateRegion(name string) error {
	if reason := checkRegion(name); reason != "" {
		return invalidArgument("region", name, reason)
	}
	return nil
}

// checkRegion returns the violation of the name of a region, or "".
func checkRegion[T string | []byte](name T) string {
	if len(name) > MaxRegion {
		return fmt.Sprintf("is %d bytes long, the limit is %d", len(name), MaxRegion)
	}
	for i := range len(name) {
		c := name[i]
		alphanumeric := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return fmt.Sprintf("byte %q at %d: a letter or digit, then letters, digits, '.', '_' and '-' are allowed", c, i)
		}
	}
	return ""
}

// Validate returns every violation that makes p unfit to be stored, as joined [ErrInvalid] errors.
func (p *Pointer) Validate() error {
	var errs []error
	p.checkFields(func(what, reason string) {
		errs = append(errs, invalidArgument(what, p.Key(), reason))
	})
	if n := Len(p); n > MaxLen {
		errs = append(errs, invalidArgument("length", p.Key(), fmt.Sprintf("%d bytes with %d sequences, the limit is %d", n, len(p.Sequences), MaxLen)))
	}
	return errors.Join(errs...)
}

// checkFields calls refuse for every rule that p violates. It formats reasons only for violations, since readers check every
// pointer.
func (p *Pointer) checkFields(refuse func(what, reason string)) {
	if !p.Blob.IsValid() {
		refuse("blob id", fmt.Sprintf("%x is not a UUID of version 7", p.Blob[:]))
	}
	if reason := checkRegion(p.Region); reason != "" {
		refuse("region", reason)
	}
	p.checkBlock(refuse)
	switch {
	case p.Length == 0:
		refuse("length", "a payload is not empty")
	case uint64(p.Offset)+uint64(p.Length) > uint64(p.BlockRawLen):
		refuse("length", fmt.Sprintf("%d bytes at %d are not within the block's %d", p.Length, p.Offset, p.BlockRawLen))
	}
	if p.Frames == 0 || p.Messages < p.Frames {
		refuse("messages", fmt.Sprintf("%d in %d frames: a payload has frames, and they have messages", p.Messages, p.Frames))
	}
	if p.MaxTime < p.MinTime {
		refuse("times", fmt.Sprintf("the largest, %d, is below the smallest, %d", p.MaxTime, p.MinTime))
	}
	if len(p.Sequences) > MaxSequences {
		refuse("sequences", fmt.Sprintf("%d runs, the limit is %d", len(p.Sequences), MaxSequences))
	}
	for i, s := range p.Sequences {
		// The sequence after the last one must be a number, too.
		if s.Last < s.First || s.Last == math.MaxUint64 {
			refuse("sequences", fmt.Sprintf("run %d of producer %d goes from %d to %d", i, s.Producer, s.First, s.Last))
		}
	}
}

// firstViolation returns the first violation of p, or "".
func (p *Pointer) firstViolation() (what, reason string) {
	p.checkFields(func(w, r string) {
		if what == "" {
			what, reason = w, r
		}
	})
	return what, reason
}

func (p *Pointer) checkBlock(refuse func(what, reason string)) {
	if p.Codec < CodecNone || p.Codec > CodecEncryptedZstd {
		refuse("codec", fmt.Sprintf("%d is unknown", uint8(p.Codec)))
	}
	if p.BlockLen == 0 || p.BlockLen > MaxBlockLen {
		refuse("block length", fmt.Sprintf("%d is not in 1..%d", p.BlockLen, MaxBlockLen))
	}
	if p.BlockRawLen == 0 || p.BlockRawLen > MaxBlockRaw {
		refuse("raw block length", fmt.Sprintf("%d is not in 1..%d", p.BlockRawLen, MaxBlockRaw))
	}
	overhead := uint32(0)
	if p.Codec.IsEncrypted() {
		overhead = EncryptionOverhead
	}
	switch {
	case p.BlockLen <= overhead:
		refuse("block length", fmt.Sprintf("%d, of which encryption takes %d", p.BlockLen, overhead))
	case p.Codec.Compression() == CodecNone && p.BlockLen-overhead != p.BlockRawLen:
		refuse("block length", fmt.Sprintf("%d stored for %d raw bytes without compression", p.BlockLen-overhead, p.BlockRawLen))
	}
	if p.BlockOffset > MaxBlobLen || p.BlockOffset+uint64(p.BlockLen) > MaxBlobLen {
		refuse("block offset", fmt.Sprintf("%d bytes at %d reach over the limit of a blob, %d", p.BlockLen, p.BlockOffset, uint64(MaxBlobLen)))
	}
}
