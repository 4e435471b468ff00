package kv

import (
	"context"
	"errors"
)

// Snapshotter is a Store that can be read as a whole. Every engine is one.
type Snapshotter interface {
	// ReadAll calls fn with every entry by key, all of one revision, and returns that revision. Writers go on meanwhile. The values belong to fn. It
	// fails with ErrCompacted when the engine does not keep that revision any more: begin anew, and keep fn short. fn must not close the store.
	ReadAll(ctx context.Context, fn func(Entry) error) (revision uint64, err error)
}

// ReadAll reads a store as a whole. See [Snapshotter].
func ReadAll(ctx context.Context, s Store, fn func(Entry) error) (revision uint64, err error) {
	whole, ok := s.(Snapshotter)
	if !ok {
		return 0, errors.New("kv: this store can't be read at one revision")
	}
	return whole.ReadAll(ctx, fn)
}
