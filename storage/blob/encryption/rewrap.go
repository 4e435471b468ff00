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
	// ID tells the key from one of the same name that was deleted before.
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
			k := StoredKey{Category: object.name.category, Generation: object.name.generation, Stored: object.info.Modified}
			o, err := readObject(ctx, store, object.key)
			if errors.Is(err, blob.ErrNotFound) {
				continue // meanwhile
			}
			if err == nil {
				k.ID, k.Wrapper = o.id, o.wrapper
			}
			if !yield(k, err) {
				return
			}
		}
	}
}

// DeleteKeys deletes all keys with a prefix: what they encrypted is unreadable from then on. Processes forget them within an hour.
func DeleteKeys(ctx context.Context, store blob.Store, prefix string) (deleted int, err error) {
	objects, err := listObjects(ctx, store, prefix)
	if err != nil {
		return 0, fmt.Errorf("encryption: list keys: %w", err)
	}
	// The newest last: while there is any, nobody takes the key for one that was never made.
	for _, o := range objects {
		if err := store.Delete(ctx, o.key); err != nil {
			return deleted, fmt.Errorf("encryption: delete %v: %w", o.name, err)
		}
		deleted++
	}
	return deleted, nil
}

// minRewrapAge is the age that an object needs to be wrapped again. A process that found no key just before it was made may still try to make
// one; by then it has failed.
const minRewrapAge = time.Hour

// RewrapKeys wraps all keys of a store with the wrapper's current key that are wrapped with another one, and deletes the old objects. It can
// be interrupted and repeated. young is how many were left out, because they were made within the last hour.
func RewrapKeys(ctx context.Context, store blob.Store, w Wrapper, now time.Time) (rewrapped, young int, err error) {
	current, err := w.Current(ctx)
	if err != nil {
		return 0, 0, err
	}
	objects, err := listObjects(ctx, store, Prefix)
	if err != nil {
		return 0, 0, fmt.Errorf("encryption: list keys: %w", err)
	}
	var old []storedObject // of the same key
	for i, object := range objects {
		if i+1 < len(objects) && objects[i+1].name == object.name {
			old = append(old, object)
			continue
		}
		o, err := readObject(ctx, store, object.key)
		if err != nil {
			return rewrapped, young, err
		}
		switch {
		case o.wrapper == current:
		case now.Sub(object.info.Modified) < minRewrapAge:
			young++
			old = old[:0]
			continue
		default:
			if err := rewrapObject(ctx, store, w, o, object.number+1); err != nil {
				return rewrapped, young, err
			}
			rewrapped++
			old = append(old, object)
		}
		for _, object := range old {
			if err := store.Delete(ctx, object.key); err != nil {
				return rewrapped, young, fmt.Errorf("encryption: delete the old object of %v: %w", object.name, err)
			}
		}
		old = old[:0]
	}
	return rewrapped, young, nil
}

// rewrapObject stores a copy of a key that the wrapper's current key wraps.
func rewrapObject(ctx context.Context, store blob.Store, w Wrapper, o *keyObject, number int) error {
	secret, err := unwrapObject(ctx, w, o)
	if err != nil {
		return err
	}
	rewrapped := &keyObject{name: o.name, id: o.id}
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
	if again, err := unwrapObject(ctx, w, stored); err != nil || string(again) != string(secret) {
		return errors.Join(fmt.Errorf("%w: %s is not the same key again", ErrObject, key), err)
	}
	return nil
}
