package journal

import (
	"fmt"

	"scribe/storage/metalog/journal/schema"
)

// ValidateSwap returns an ErrInvalid if a Swap is against the rules that all engines share.
func ValidateSwap(known, next Head, entry []byte) error {
	appended := uint64(0)
	if entry != nil {
		appended = 1
	}
	switch {
	case known.Detached != "":
		return fmt.Errorf("%w: a change of a journal that has ended: %w", ErrInvalid, CheckDetached(known))
	case next.Seq != known.Seq+appended:
		return fmt.Errorf("%w: the head goes from entry %d to %d with %d new entries", ErrInvalid, known.Seq, next.Seq, appended)
	case entry != nil && len(entry) == 0:
		return fmt.Errorf("%w: an entry without bytes", ErrInvalid)
	case len(entry) > schema.MaxEntry:
		return fmt.Errorf("%w: an entry of %d bytes, the limit is %d", ErrInvalid, len(entry), schema.MaxEntry)
	case next.Term < known.Term || next.Beat < known.Beat || next.Time < known.Time || next.Snapshot < known.Snapshot,
		next.Bound < known.Bound && !next.Free():
		return fmt.Errorf("%w: a field of the head goes back: from %+v to %+v", ErrInvalid, known, next)
	case next.Snapshot > next.Seq:
		return fmt.Errorf("%w: a snapshot at entry %d, the last one is %d", ErrInvalid, next.Snapshot, next.Seq)
	case len(next.Leader) > schema.MaxURL:
		return fmt.Errorf("%w: a leader's URL of %d bytes, the limit is %d", ErrInvalid, len(next.Leader), schema.MaxURL)
	}
	return nil
}

// ValidateTrim returns an ErrInvalid if trimming would remove entries that are in no snapshot.
func ValidateTrim(head Head, below uint64) error {
	if below > head.Snapshot+1 {
		return fmt.Errorf("%w: trim below entry %d, the newest snapshot is at entry %d", ErrInvalid, below, head.Snapshot)
	}
	return nil
}
