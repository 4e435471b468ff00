package encryption

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"scribe/storage/blob"
)

// StoredKey describes a key in a store.
type StoredKey struct {
	// Category is the id of the category, Generation the number of its key.
	Category, Generation uint32
	// ID tells the key from others of the same generation.
	ID uint64
	// Wrapper names the key that wraps it.
	Wrapper string
	// Stored is when the object was stored.
	Stored time.Time
}

// ListKeys yields the keys of a store, by category and generation. It goes on after objects that it can't read.
func ListKeys(ctx context.Context, store blob.Store, prefix string) iter.Seq2[StoredKey, error] {
	return func(yield func(StoredKey, error) bool) {
		objects, err := listObjects(ctx, store, prefix)
		if err != nil {
			yield(StoredKey{}, err)
			return
		}
		for i, object := range objects {
			if i+1 < len(objects) && objects[i+1].name == object.name {
				continue // it was wrapped again
			}
			k := StoredKey{Category: object.name.category, Generation: object.name.generation, ID: object.name.id, Stored: object.info.Modified}
			o, err := readObject(ctx, store, object.key)
			if errors.Is(err, blob.ErrNotFound) {
				continue // meanwhile
			}
			if err == nil {
				k.Wrapper = o.wrapper
			}
			if !yield(k, err) {
				return
			}
		}
	}
}

// ListCategories returns the ids of the categories that have keys in a store, in order. It reads none.
func ListCategories(ctx context.Context, store blob.Store) (ids []uint32, err error) {
	objects, err := listObjects(ctx, store, Prefix)
	if err != nil {
		return nil, fmt.Errorf("encryption: list keys: %w", err)
	}
	for _, o := range objects {
		if n := len(ids); n == 0 || ids[n-1] != o.name.category {
			ids = append(ids, o.name.category)
		}
	}
	return ids, nil
}

// DeleteKeys deletes all keys of a category: what they encrypted is unreadable from then on. Processes that have them forget them within an hour. With
// former, it leaves the newest generation, which new blocks take.
func DeleteKeys(ctx context.Context, store blob.Store, category uint32, former bool) (deleted int, err error) {
	objects, err := listObjects(ctx, store, CategoryPrefix(category))
	if err != nil {
		return 0, fmt.Errorf("encryption: list keys: %w", err)
	}
	for _, o := range objects {
		if former && o.name.generation == objects[len(objects)-1].name.generation {
			break
		}
		if err := store.Delete(ctx, o.key); err != nil {
			return deleted, fmt.Errorf("encryption: delete %v: %w", o.name, err)
		}
		deleted++
	}
	return deleted, nil
}

// minRewrapAge is the age that an object needs to be wrapped again: a process that has listed it may not have read it yet.
const minRewrapAge = time.Hour

// RewrapKeys wraps all keys of a store with the wrapper's current key that are wrapped with another one, and deletes the old objects. It can
// be interrupted and repeated. young is how many were left out, because they were made within the last hour. It goes on after a key that it can't wrap
// again; the error says which these are.
func RewrapKeys(ctx context.Context, store blob.Store, w Wrapper, now time.Time) (rewrapped, young int, err error) {
	current, err := w.Current(ctx)
	if err != nil {
		return 0, 0, err
	}
	objects, err := listObjects(ctx, store, Prefix)
	if err != nil {
		return 0, 0, fmt.Errorf("encryption: list keys: %w", err)
	}
	var failed []error
	for len(objects) > 0 && ctx.Err() == nil {
		n := 1
		for n < len(objects) && objects[n].name == objects[0].name {
			n++
		}
		outcome, err := rewrapKey(ctx, store, w, current, objects[:n], now)
		switch {
		case err != nil:
			failed = append(failed, fmt.Errorf("encryption: wrap %v again: %w", objects[0].name, err))
		case outcome == keyRewrapped:
			rewrapped++
		case outcome == keyYoung:
			young++
		}
		objects = objects[n:]
	}
	return rewrapped, young, errors.Join(append(failed, context.Cause(ctx))...)
}

// rewrapOutcome is what was done for a key.
type rewrapOutcome uint8

const (
	keyCurrent   rewrapOutcome = 0
	keyRewrapped rewrapOutcome = 1
	keyYoung     rewrapOutcome = 2
)

// rewrapKey wraps a key again if that is needed, and deletes all of its objects but the newest.
func rewrapKey(ctx context.Context, store blob.Store, w Wrapper, current string, copies []storedObject, now time.Time) (outcome rewrapOutcome, err error) {
	newest := copies[len(copies)-1]
	o, err := readObject(ctx, store, newest.key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return keyCurrent, nil // it was deleted meanwhile
	case err != nil:
		return 0, err
	case o.wrapper == current:
		copies = copies[:len(copies)-1]
	case now.Sub(newest.info.Modified) < minRewrapAge:
		return keyYoung, nil
	default:
		if err := rewrapObject(ctx, store, w, o, current, newest.number+1); err != nil {
			return 0, err
		}
		outcome = keyRewrapped
	}
	for _, old := range copies {
		if err := store.Delete(ctx, old.key); err != nil {
			return 0, fmt.Errorf("delete the old object: %w", err)
		}
	}
	return outcome, nil
}

// rewrapObject stores a copy of a key that the wrapper's current key wraps.
func rewrapObject(ctx context.Context, store blob.Store, w Wrapper, o *keyObject, current string, number int) error {
	secret, err := unwrapObject(ctx, w, o)
	if err != nil {
		return err
	}
	rewrapped := &keyObject{name: o.name}
	if err := wrapObject(ctx, w, rewrapped, secret); err != nil {
		return err
	}
	key := o.name.objectKey(number)
	if err := store.Put(ctx, key, rewrapped.encode()); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("encryption: put %v: %w", o.name, err)
	}
	// What is stored counts, before the old object goes.
	stored, err := readObject(ctx, store, key)
	if err != nil {
		return err
	}
	if again, err := unwrapObject(ctx, w, stored); err != nil || string(again) != string(secret) || stored.wrapper != current {
		return errors.Join(fmt.Errorf("%w: %s is not the same key, wrapped with %s: somebody else may wrap keys again at the same time", ErrObject, key, current), err)
	}
	return nil
}
