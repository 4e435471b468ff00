package linear

import (
	"errors"
	"fmt"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// FollowedShard is what the updates of one subscription have shown of a shard. It begins with the position asked for.
type FollowedShard struct {
	Next      record.LSN
	TrimmedTo record.LSN
	Tail      record.LSN
	Watermark int64
	Sealed    bool
	MovedTo   string
	last      int64 // time of the newest record
	promised  int64 // the newest watermark of the subscriptions before
}

// TakeUpdate takes an update, or fails if the update violates the contract of metalog.Log.Subscribe.
func (f *FollowedShard) TakeUpdate(u *metalog.Update) error {
	switch {
	case f.Sealed, f.MovedTo != "":
		return errors.New("an update came after the last one")
	case u.TrimmedTo != 0 && u.TrimmedTo <= f.Next:
		return fmt.Errorf("trimmed to %d, but the position is %d already", u.TrimmedTo, f.Next)
	case u.NextLSN < f.Tail:
		return fmt.Errorf("the tail went back from %d to %d", f.Tail, u.NextLSN)
	case u.TrimmedTo != 0:
		f.Next, f.TrimmedTo = u.TrimmedTo, u.TrimmedTo
	}
	for _, en := range u.Entries {
		switch {
		case en.LSN != f.Next:
			return fmt.Errorf("LSN %d came instead of %d", en.LSN, f.Next)
		case en.Time < f.Watermark:
			return fmt.Errorf("LSN %d has time %d, but the watermark was %d before", en.LSN, en.Time, f.Watermark)
		case en.Time < f.promised:
			return fmt.Errorf("LSN %d has time %d, but an earlier subscription had the watermark %d", en.LSN, en.Time, f.promised)
		case en.Time < f.last:
			return fmt.Errorf("LSN %d has time %d, the one before %d", en.LSN, en.Time, f.last)
		}
		f.Next, f.last = f.Next+1, en.Time
	}
	switch {
	case u.NextLSN < f.Next && len(u.Entries) > 0:
		return fmt.Errorf("the tail is %d after LSN %d", u.NextLSN, f.Next-1)
	case f.Next < u.NextLSN && (u.Watermark != 0 || u.Sealed || u.MovedTo != ""):
		return fmt.Errorf("at %d, before the tail %d, with watermark %d, sealed %v and moved to %q", f.Next, u.NextLSN, u.Watermark, u.Sealed, u.MovedTo)
	case u.Sealed && u.MovedTo != "":
		return fmt.Errorf("sealed, and moved to %q", u.MovedTo)
	case f.Next >= u.NextLSN && u.Watermark == 0:
		return fmt.Errorf("at the tail %d without a watermark", u.NextLSN)
	case u.Watermark != 0 && u.Watermark < f.Watermark:
		return fmt.Errorf("the watermark went back from %d to %d", f.Watermark, u.Watermark)
	}
	f.Watermark = max(f.Watermark, u.Watermark)
	f.Tail, f.Sealed, f.MovedTo = u.NextLSN, u.Sealed, u.MovedTo
	return nil
}
