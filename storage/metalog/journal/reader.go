package journal

import (
	"context"
	"errors"
	"fmt"

	"scribe/storage/metalog/journal/schema"
)

// CheckPosition returns ErrWentBack if head can't belong to the journal that was applied up to a position.
func CheckPosition(applied Position, head Head) error {
	switch {
	case head.Seq < applied.Seq:
		return &WentBackError{Detail: fmt.Sprintf("it ends at entry %d, entry %d was applied", head.Seq, applied.Seq)}
	case head.Seq == applied.Seq && head.Chain != applied.Chain:
		return &WentBackError{Detail: fmt.Sprintf("entry %d has another chain (%v) than the one applied (%v)", head.Seq, head.Chain, applied.Chain)}
	}
	return nil
}

// Reader reads the entries of a journal for a replica. It is not safe for concurrent use.
type Reader struct {
	journal Journal
	decoder *schema.Decoder
}

// NewReader returns a reader.
func NewReader(j Journal) (*Reader, error) {
	d, err := schema.NewDecoder()
	if err != nil {
		return nil, err
	}
	return &Reader{journal: j, decoder: d}, nil
}

// ReadEntries calls fn with each entry after a position, up to that of head, in order, and with the position after the entry. The
// entry's memory belongs to fn. It returns the position after the last entry for which fn returned nil, also with an error.
//
// It checks that every entry continues the one before it and that head continues the last one: ErrWentBack if the first one does
// not, since then what was applied is from another journal, and ErrCorrupt otherwise. ErrTrimmed means that the replica must begin
// from a snapshot. fn's error is returned as it is.
func (r *Reader) ReadEntries(ctx context.Context, after Position, head Head, fn func(e Entry, position Position) error) (Position, error) {
	if err := CheckPosition(after, head); err != nil || head.Seq == after.Seq {
		return after, err
	}
	position := after
	err := r.journal.Read(ctx, after.Seq+1, head.Seq, func(seq uint64, b []byte) error {
		e, err := r.decodeNext(position, after, seq, b)
		if err != nil {
			return err
		}
		next := Position{Seq: seq, Chain: schema.ChainAfter(b)}
		if seq == head.Seq && next.Chain != head.Chain {
			return &CorruptError{Seq: seq, Detail: fmt.Sprintf("its chain is %v, the head's is %v", next.Chain, head.Chain)}
		}
		if err := fn(e, next); err != nil {
			return err
		}
		position = next
		return nil
	})
	if err == nil && position.Seq != head.Seq {
		err = &CorruptError{Seq: position.Seq + 1, Detail: "it was not read"}
	}
	return position, err
}

// decodeNext decodes an entry and checks that it continues position. The first one continues begin.
func (r *Reader) decodeNext(position, begin Position, seq uint64, b []byte) (Entry, error) {
	e, err := r.decoder.Decode(b)
	if errors.Is(err, ErrVersion) {
		return Entry{}, fmt.Errorf("entry %d: %w", seq, err)
	}
	switch {
	case err != nil:
		return Entry{}, &CorruptError{Seq: seq, Detail: err.Error()}
	case seq != position.Seq+1 || e.Seq != seq:
		return Entry{}, &CorruptError{Seq: seq, Detail: fmt.Sprintf("it is entry %d, read after entry %d", e.Seq, position.Seq)}
	case e.Before != position.Chain && position == begin:
		return Entry{}, &WentBackError{Detail: fmt.Sprintf("entry %d continues chain %v, what was applied has %v", seq, e.Before, position.Chain)}
	case e.Before != position.Chain:
		return Entry{}, &CorruptError{Seq: seq, Detail: fmt.Sprintf("it continues chain %v, the entry before has %v", e.Before, position.Chain)}
	}
	return e, nil
}
