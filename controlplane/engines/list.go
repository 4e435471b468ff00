package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"scribe/storage/kv"
	"scribe/storage/metalog"
	"scribe/storage/metalog/router"
)

// Keys of the store (docs/format/engines.md).
const (
	// ListKey has the list of engines.
	ListKey = "meta/metadata-engines"
	// HomePrefix is followed by the id of a category in ten digits.
	HomePrefix = "engine-home/"
)

// HomeKey returns the key of a category's home.
func HomeKey(category uint32) string { return fmt.Sprintf("%s%010d", HomePrefix, category) }

// recordVersion is the version of both records. A newer one is refused.
const recordVersion = 1

// maxRecord bounds a record in bytes: a list of all engines with the longest names has less.
const maxRecord = 16 << 10

// Engine is a metadata engine of the cell.
type Engine struct {
	Name string `json:"name"`
	// AddedAt is when it was added, DrainingSince since when it has been drained, Unix µs; DrainingSince is 0 if it is not.
	AddedAt       int64 `json:"added_at,omitempty"`
	DrainingSince int64 `json:"draining_since,omitempty"`
}

// List is the engines of a cell, in the order in which they were added. The first one is the root, in which every category begins.
type List []Engine

// Errors of changes of a list.
var (
	// ErrRoot means that the root can't be drained.
	ErrRoot = errors.New("every category begins in this metadata engine, so it can't be drained")
	// ErrUnknown means that there is no engine of that name.
	ErrUnknown = errors.New("there is no such metadata engine")
	// ErrMany means that the cell has as many engines as it can have.
	ErrMany = fmt.Errorf("a cell has at most %d metadata engines", router.MaxEngines)
)

// Add returns the list with an engine. One that is being drained takes categories again. An engine that is there stays as it is.
func (l List) Add(name string, now int64) (List, error) {
	if err := metalog.ValidateEngineName(name); err != nil {
		return nil, err
	}
	i := l.find(name)
	if i < 0 {
		if len(l) >= router.MaxEngines {
			return nil, ErrMany
		}
		return append(slices.Clone(l), Engine{Name: name, AddedAt: now}), nil
	}
	out := slices.Clone(l)
	out[i].DrainingSince = 0
	return out, nil
}

// Drain returns the list with an engine that gets no categories any more, and whose categories go elsewhere.
func (l List) Drain(name string, now int64) (List, error) {
	i := l.find(name)
	switch {
	case i < 0:
		return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
	case i == 0:
		return nil, fmt.Errorf("%w: %q", ErrRoot, name)
	}
	out := slices.Clone(l)
	if out[i].DrainingSince == 0 {
		out[i].DrainingSince = max(now, 1)
	}
	return out, nil
}

func (l List) find(name string) int {
	return slices.IndexFunc(l, func(e Engine) bool { return e.Name == name })
}

// listRecord is the stored form of a list.
type listRecord struct {
	Version int  `json:"version"`
	Engines List `json:"engines"`
}

// Encode returns the stored form of a list.
func (l List) Encode() ([]byte, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	return json.Marshal(listRecord{Version: recordVersion, Engines: l})
}

// DecodeList decodes a stored list, whose first engine is root.
func DecodeList(value []byte, root string) (List, error) {
	var r listRecord
	err := decodeRecord(value, &r)
	switch {
	case err == nil && r.Version != recordVersion:
		err = fmt.Errorf("version %d, this program knows version %d", r.Version, recordVersion)
	case err == nil:
		err = r.Engines.check()
	}
	if err == nil && r.Engines[0].Name != root {
		err = fmt.Errorf("the first engine is %q, want %q", r.Engines[0].Name, root)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, ListKey, err)
	}
	return r.Engines, nil
}

func (l List) check() error {
	if len(l) == 0 || len(l) > router.MaxEngines || l[0].DrainingSince != 0 {
		return fmt.Errorf("a list of %d engines, want 1 to %d, the first of which is not drained", len(l), router.MaxEngines)
	}
	for i, e := range l {
		if err := metalog.ValidateEngineName(e.Name); err != nil {
			return err
		}
		if l.find(e.Name) != i || e.AddedAt < 0 || e.DrainingSince < 0 {
			return fmt.Errorf("the engine %q can't be: it is listed twice, or has a negative time", e.Name)
		}
	}
	return nil
}

// Home is where the logs of a category are created.
type Home struct {
	// Engine is the engine that does, or will do.
	Engine string `json:"engine"`
	// Mark is the version of the category's mark with which it does (metalog.Forward); 0 in the root if the category never left it.
	Mark uint64 `json:"mark,omitempty"`
	// From, when not empty, is the engine that the category comes from: not everything has moved yet.
	From string `json:"from,omitempty"`
}

// homeRecord is the stored form of a home.
type homeRecord struct {
	Version int `json:"version"`
	Home
}

// Encode returns the stored form of a home.
func (h Home) Encode() ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	return json.Marshal(homeRecord{Version: recordVersion, Home: h})
}

// DecodeHome decodes a stored home.
func DecodeHome(key string, value []byte) (category uint32, h Home, err error) {
	digits, ok := strings.CutPrefix(key, HomePrefix)
	id, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || !ok || HomeKey(uint32(id)) != key {
		return 0, h, fmt.Errorf("%w: %.100q does not name the home of a category", kv.ErrCorrupt, key)
	}
	var r homeRecord
	if err = decodeRecord(value, &r); err == nil && r.Version != recordVersion {
		err = fmt.Errorf("version %d, this program knows version %d", r.Version, recordVersion)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return 0, h, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, key, err)
	}
	return uint32(id), r.Home, nil
}

func (h Home) check() error {
	if err := metalog.ValidateEngineName(h.Engine); err != nil {
		return err
	}
	if h.From == "" {
		return nil
	}
	if h.From == h.Engine || h.Mark == 0 {
		return fmt.Errorf("a category that goes from %q to %q with mark %d", h.From, h.Engine, h.Mark)
	}
	return metalog.ValidateEngineName(h.From)
}

func decodeRecord(value []byte, into any) error {
	if len(value) > maxRecord {
		return fmt.Errorf("%d bytes, the limit is %d", len(value), maxRecord)
	}
	return json.Unmarshal(value, into)
}
