package pebblelog

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// loadFolder checks the folder's format, and reads and writes the state that the engine starts with. Its cost does not depend on
// the number of shards and records, and little on the number of runs of retired categories.
func (e *Engine) loadFolder() error {
	version, found, err := e.readNumber(schema.MetaFormat)
	if err != nil {
		return err
	}
	b := e.db.NewBatch()
	defer func() { _ = b.Close() }() // an error here loses nothing
	switch {
	case !found:
		if err := e.requireEmpty(); err != nil {
			return err
		}
		setNumber(b, schema.MetaFormat, schema.Version)
	case schema.IsReplica(version):
		return fmt.Errorf("%w: it belongs to a replica: give the journal, or use another folder", ErrReplica)
	case version > schema.Version && version != schema.StubVersion:
		return fmt.Errorf("%w: version %d, this build reads %d: use a newer build", ErrVersion, version, schema.StubVersion)
	case version < schema.OldestVersion:
		return fmt.Errorf("unsupported format version %d of the folder", version)
	case version < schema.Version:
		setNumber(b, schema.MetaFormat, schema.Version)
	}
	e.hasStubs = schema.HasStubs(version)
	if err := e.loadMarks(); err != nil {
		return err
	}
	bound, _, err := e.readNumber(schema.MetaClock)
	if err != nil {
		return err
	}
	e.clock.startAt(bound)
	if ahead := e.clock.microsAhead(); ahead > 2*e.clock.lease {
		e.opts.Logger.Warn("wall clock is behind the last persisted times: the engine's clock stands still until it catches up", "behind_us", ahead)
	}
	_, bound = e.clock.beginBatch()
	if bound != 0 {
		setNumber(b, schema.MetaClock, bound)
	}
	if err := e.commitSynced(b); err != nil {
		return err
	}
	e.clock.endBatch(bound)
	return nil
}

// loadMarks reads the retired categories and the boundary.
func (e *Engine) loadMarks() (err error) {
	if e.retired, err = loadRetired(e.db); err != nil {
		return err
	}
	e.table.mu.retired = slices.Clone(e.retired)
	if e.table.origin, err = e.readOrigin(); err != nil {
		return err
	}
	boundary, _, err := e.readNumber(schema.MetaBoundary)
	e.boundary.Store(boundary)
	return err
}

// requireEmpty fails when the folder's database has any key.
func (e *Engine) requireEmpty() error {
	for _, err := range keysBetween(e.db, nil, nil, (*pebble.Iterator).Next) {
		return cmp.Or(err, errors.New("the folder holds another Pebble database"))
	}
	return nil
}

// lookUp reads and decodes the value of a key.
func lookUp[T any](db *pebble.DB, key []byte, decode func(key, value []byte) (T, error)) (v T, found bool, err error) {
	value, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return v, false, nil
	}
	if err == nil {
		v, err = decode(key, value)
		err = errors.Join(err, closer.Close())
	}
	return v, err == nil, err
}

// keysBetween yields an iterator at each key from low to before high, and then the error that ended it, if any; nil is no bound.
func keysBetween(db *pebble.DB, low, high []byte, advance func(*pebble.Iterator) bool) iter.Seq2[*pebble.Iterator, error] {
	return func(yield func(*pebble.Iterator, error) bool) {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: low, UpperBound: high})
		if err != nil {
			yield(nil, err)
			return
		}
		for ok := it.First(); ok; ok = advance(it) {
			if !yield(it, nil) {
				_ = it.Close() // the caller has what it wants
				return
			}
		}
		if err := cmp.Or(it.Error(), it.Close()); err != nil {
			yield(nil, err)
		}
	}
}

// seekNextKey advances an iterator by a seek. Next steps over every version of a key that the memtable holds, which are as many as there were
// appends where appends write the key.
func seekNextKey(it *pebble.Iterator) bool { return it.SeekGE(append(slices.Clone(it.Key()), 0)) }

func (e *Engine) readNumber(m schema.Meta) (v int64, found bool, err error) {
	v, found, err = lookUp(e.db, schema.MetaKey(m), schema.DecodeNumber)
	if errors.Is(err, schema.ErrCorrupt) {
		err = fmt.Errorf("%w: folder key %#x: %w", metalog.ErrCorrupt, m, err)
	}
	return v, found, err
}

func setNumber(b *pebble.Batch, m schema.Meta, v int64) {
	key := schema.MetaKey(m)
	_ = b.Set(key, schema.AppendNumber(nil, key, v), nil) // a batch without an index fails only when it is closed
}
