package retention

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// LeaseShard is the shard of the metadata engine to which the leading keeper appends its state. No category has the id 0.
var LeaseShard = record.MakeShardID(0, 0, 0)

// stateVersion is the version that is written, and the newest that can be read.
const stateVersion = 1

// maxRechecks bounds the state: beyond it, rechecks are merged.
const maxRechecks = 256

// keeperState is the progress that a keeper hands over to its successor: docs/format/retention.md. Times are Unix microseconds.
type keeperState struct {
	Version int `json:"version"`
	// Cell is a random name for the pair of engine and blob store, made by the first keeper.
	Cell string `json:"cell"`
	// Unclaimed is set until the cell has had the blob store for itself once.
	Unclaimed bool `json:"unclaimed,omitempty"`
	// FormerUntil is the boundary up to which claims of other cells are those of former ones, which the cell has replaced.
	FormerUntil int64 `json:"former_until,omitempty"`
	// Owner leads, unless Released is set.
	Owner    string `json:"owner"`
	Released bool   `json:"released,omitempty"`
	// Cursors are, by class, blob id times: all older blobs were examined once, and the dead ones among them deleted.
	Cursors map[uint32]int64 `json:"cursors,omitempty"`
	// Rechecks are blobs to examine again, because their contents may have expired earlier than expected.
	Rechecks []recheckRange `json:"rechecks,omitempty"`
	// SweptAt is when the last sweep, a listing of all blobs, ended. SweepClass is the class that a running sweep has reached; 0 for none.
	SweptAt    int64  `json:"swept_at,omitempty"`
	SweepClass uint32 `json:"sweep_class,omitempty"`
}

// recheckRange is the blobs of a class that were made from From to To; they were due for examination at At.
type recheckRange struct {
	Class uint32 `json:"class"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	At    int64  `json:"at"`
	// taken is set once they are scheduled. examined is when all of them had been examined; 0 before. Neither is persisted.
	taken    bool
	examined int64
}

// encode returns the state as a record.
func (s *keeperState) encode() ([]byte, error) {
	s.Version = stateVersion
	b, err := json.Marshal(s)
	if err == nil && len(b) > metalog.MaxRecord {
		err = fmt.Errorf("retention: state has %d bytes, the limit is %d", len(b), metalog.MaxRecord)
	}
	return b, err
}

// errState wraps the errors of decodeState.
var errState = errors.New("retention: damaged state")

// decodeState decodes a record. It fails with errState for a damaged one, and with another error for one of a newer version.
func decodeState(b []byte) (*keeperState, error) {
	s := new(keeperState)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%w: %w", errState, err)
	}
	switch {
	case s.Version < 1:
		return nil, fmt.Errorf("%w: invalid version %d", errState, s.Version)
	case s.Version > stateVersion:
		return nil, fmt.Errorf("retention: state has version %d, this build reads up to %d: use a newer build", s.Version, stateVersion)
	case checkCell(s.Cell) != nil || s.Owner == "" || len(s.Owner) > metalog.MaxOwner || len(s.Rechecks) > maxRechecks:
		return nil, fmt.Errorf("%w: cell %.80q, owner %.80q, %d rechecks", errState, s.Cell, s.Owner, len(s.Rechecks))
	}
	if s.FormerUntil < 0 {
		return nil, fmt.Errorf("%w: claims of former cells until %d", errState, s.FormerUntil)
	}
	for class, at := range s.Cursors {
		if class == 0 || at < 0 {
			return nil, fmt.Errorf("%w: invalid cursor %d of class %d", errState, at, class)
		}
	}
	for _, r := range s.Rechecks {
		if r.Class == 0 || r.From < 0 || r.To < r.From || r.At < 0 {
			return nil, fmt.Errorf("%w: invalid recheck of class %d from %d to %d at %d", errState, r.Class, r.From, r.To, r.At)
		}
	}
	return s, nil
}

// addRecheck adds blobs to examine again. Beyond maxRechecks, all rechecks of a class become one.
func (s *keeperState) addRecheck(r recheckRange) {
	r.From, r.To, r.At = max(r.From, 0), max(r.To, r.From, 0), max(r.At, 0)
	if len(s.Rechecks) < maxRechecks {
		s.Rechecks = append(s.Rechecks, r)
		return
	}
	byClass := map[uint32]recheckRange{}
	for _, r := range append(s.Rechecks, r) {
		if m, ok := byClass[r.Class]; ok {
			r.From, r.To, r.At = min(r.From, m.From), max(r.To, m.To), max(r.At, m.At)
		}
		r.taken, r.examined = false, 0
		byClass[r.Class] = r
	}
	s.Rechecks = slices.SortedFunc(maps.Values(byClass), func(a, b recheckRange) int { return cmp.Compare(a.Class, b.Class) })
	if len(s.Rechecks) > maxRechecks { // there are not that many classes
		s.Rechecks = s.Rechecks[:maxRechecks]
	}
}
