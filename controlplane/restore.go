package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// StoredCategories are the categories in a control store.
type StoredCategories struct {
	Categories []*scribev1.Category
	// Dropped are deleted categories that retention has not finished, and those that may not be retired yet.
	Dropped []*scribev1.Category
	// NextID is above every id ever given out; 0 if none was.
	NextID uint64
	// Tenants are quotas of tenants to write; nil = none. They are not read: CopyRest copies them.
	Tenants *scribev1.TenantQuotas
}

// ReadState reads the categories of a control store that no control plane uses. Damage is an error.
func ReadState(ctx context.Context, store kv.Store) (StoredCategories, error) {
	var s StoredCategories
	err := forEach(ctx, store, categoryPrefix, func(e kv.Entry) error {
		c, err := decodeCategory(e.Key[len(categoryPrefix):], e.Value, e.Revision)
		s.Categories = append(s.Categories, c)
		return err
	})
	known := map[uint32]bool{}
	for _, prefix := range []string{droppedPrefix, retiringPrefix} {
		err = errors.Join(err, forEach(ctx, store, prefix, func(e kv.Entry) error {
			c, err := decodeDeleted(e.Key, e.Value)
			if err == nil && !known[c.GetId()] {
				known[c.GetId()] = true
				s.Dropped = append(s.Dropped, c)
			}
			return err
		}))
	}
	counter, gerr := store.Get(ctx, nextIDKey)
	switch {
	case errors.Is(gerr, kv.ErrNotFound):
	case gerr != nil:
		err = errors.Join(err, gerr)
	default:
		s.NextID, gerr = decodeNextID(counter.Value)
		err = errors.Join(err, gerr)
	}
	if err != nil {
		return StoredCategories{}, fmt.Errorf("controlplane: read categories: %w", err)
	}
	return s, nil
}

// CopyRest copies everything but the categories from one control store into another that has none of it: consumer groups and
// writer slots, for example. edit returns the value to write for that of a key; nil copies all values as they are.
func CopyRest(ctx context.Context, from, to kv.Store, edit func(key string, value []byte) []byte) error {
	ofCategories := []string{categoryPrefix, droppedPrefix, retiringPrefix, nextIDKey}
	var ops []kv.Op
	write := func() error {
		for _, part := range kv.SplitOps(ops, 0) {
			if _, err := to.Commit(ctx, part...); err != nil {
				return err
			}
		}
		ops = ops[:0]
		return nil
	}
	err := forEach(ctx, from, "", func(e kv.Entry) error {
		if slices.ContainsFunc(ofCategories, func(prefix string) bool { return strings.HasPrefix(e.Key, prefix) }) {
			return nil
		}
		value := e.Value
		if edit != nil {
			value = edit(e.Key, value)
		}
		if ops = append(ops, kv.Put(e.Key, value).If(0)); len(ops) < kv.MaxOps {
			return nil
		}
		return write()
	})
	if err == nil {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("controlplane: copy groups, slots and other keys: %w", err)
	}
	return nil
}

func forEach(ctx context.Context, store kv.Store, prefix string, fn func(kv.Entry) error) error {
	for e, err := range kv.All(ctx, store, prefix) {
		if err == nil {
			err = fn(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteState writes categories into a control store without any. A crash leaves a part of them; the counter of ids is written
// first, so no id is given out twice.
func WriteState(ctx context.Context, store kv.Store, s StoredCategories) error {
	if s.NextID == 0 || s.NextID > maxID+1 {
		return fmt.Errorf("controlplane: restore: invalid next id %d", s.NextID)
	}
	var ops []kv.Op
	put := func(key string, c *scribev1.Category) error {
		value, err := encodeCategory(c)
		ops = append(ops, kv.Put(key, value).If(0))
		return err
	}
	for _, c := range s.Categories {
		err := record.ValidateCategory(c.GetName())
		if err == nil && (c.GetId() == 0 || uint64(c.GetId()) >= s.NextID) {
			err = fmt.Errorf("id %d is not below the next one, %d", c.GetId(), s.NextID)
		}
		if err == nil {
			err = put(categoryKey(c.GetName()), c)
		}
		if err != nil {
			return fmt.Errorf("controlplane: restore category %q: %w", c.GetName(), err)
		}
	}
	for _, c := range s.Dropped {
		if err := put(droppedKey(c.GetId()), c); err != nil {
			return fmt.Errorf("controlplane: restore deleted category %q: %w", c.GetName(), err)
		}
	}
	if s.Tenants != nil {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(s.Tenants)
		if err == nil {
			_, err = decodeTenantQuotas(value)
		}
		if err != nil {
			return fmt.Errorf("controlplane: restore the quotas of tenants: %w", err)
		}
		ops = append(ops, kv.Put(tenantQuotasKey, value).If(0))
	}
	counter := []kv.Op{kv.Put(nextIDKey, encodeNextID(s.NextID)).If(0)}
	for _, part := range append([][]kv.Op{counter}, kv.SplitOps(ops, 0)...) {
		if _, err := store.Commit(ctx, part...); err != nil {
			return fmt.Errorf("controlplane: restore: %w", err)
		}
	}
	return nil
}
