// Package memory keeps blobs in memory: the store of tests and of a cell that need not survive its process. It is a complete
// implementation of blob.Store except for durability, and passes the acceptance suite of package blobtest.
package memory

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/storage/blob"
	"scribe/storage/blob/internal/gate"
)

// Store is a blob.Store in memory.
type Store struct {
	gate gate.Gate
	max  int64

	mu struct {
		sync.RWMutex
		blobs map[string]storedObject
		bytes int64
	}
}

// storedObject is immutable.
type storedObject struct {
	data     []byte
	modified time.Time
}

var _ blob.Store = (*Store)(nil)

// New returns an empty store without a bound.
func New() *Store { return NewLimited(0) }

// NewLimited returns an empty store that accepts at most maxBytes of blobs and then fails with blob.ErrNoSpace; 0 means no bound.
func NewLimited(maxBytes int64) *Store {
	s := &Store{max: maxBytes}
	s.mu.blobs = map[string]storedObject{}
	return s
}

// Put implements blob.Store.
func (s *Store) Put(ctx context.Context, key string, parts ...[]byte) error {
	if err := s.gate.EnterKey(ctx, key); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	defer s.gate.Leave()
	data := slices.Concat(parts...)

	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.mu.blobs[key]; ok {
		return fmt.Errorf("put %s: %w", key, blob.ErrExists)
	}
	if s.max > 0 && s.mu.bytes+int64(len(data)) > s.max {
		return fmt.Errorf("put %s: %w: %d bytes beside %d, the limit is %d", key, blob.ErrNoSpace, len(data), s.mu.bytes, s.max)
	}
	s.mu.blobs[key] = storedObject{data: data, modified: time.Now()}
	s.mu.bytes += int64(len(data))
	return nil
}

// ReadAt implements blob.Store.
func (s *Store) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	o, err := s.getObject(ctx, key)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if size := int64(len(o.data)); off < 0 || off > size || int64(len(dst)) > size-off {
		return fmt.Errorf("read %s: %w: %d bytes at %d of %d", key, blob.ErrRange, len(dst), off, size)
	}
	copy(dst, o.data[off:])
	return nil
}

// Stat implements blob.Store.
func (s *Store) Stat(ctx context.Context, key string) (blob.Info, error) {
	o, err := s.getObject(ctx, key)
	if err != nil {
		return blob.Info{}, fmt.Errorf("stat: %w", err)
	}
	return o.objectInfo(key), nil
}

// List implements blob.Store. It lists the blobs that exist when it begins.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := s.listKeys(ctx, prefix, yield); err != nil {
			yield(blob.Info{}, fmt.Errorf("list %q: %w", prefix, err))
		}
	}
}

func (s *Store) listKeys(ctx context.Context, prefix string, yield func(blob.Info, error) bool) error {
	if err := blob.CheckPrefix(prefix); err != nil {
		return err
	}
	if err := s.gate.Enter(); err != nil {
		return err
	}
	defer s.gate.Leave()

	s.mu.RLock()
	infos := make([]blob.Info, 0, len(s.mu.blobs))
	for key, o := range s.mu.blobs {
		if strings.HasPrefix(key, prefix) {
			infos = append(infos, o.objectInfo(key))
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(infos, func(a, b blob.Info) int { return strings.Compare(a.Key, b.Key) })

	for _, info := range infos {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !yield(info, nil) {
			return nil
		}
	}
	return ctx.Err()
}

// Delete implements blob.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.gate.EnterKey(ctx, key); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	defer s.gate.Leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.bytes -= int64(len(s.mu.blobs[key].data))
	delete(s.mu.blobs, key)
	return nil
}

// Close implements blob.Store. It drops the blobs.
func (s *Store) Close() error {
	s.gate.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mu.blobs)
	s.mu.bytes = 0
	return nil
}

// Bytes returns the sum of the sizes of all blobs.
func (s *Store) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.bytes
}

func (s *Store) getObject(ctx context.Context, key string) (storedObject, error) {
	if err := s.gate.EnterKey(ctx, key); err != nil {
		return storedObject{}, err
	}
	defer s.gate.Leave()
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.mu.blobs[key]
	if !ok {
		return storedObject{}, fmt.Errorf("%s: %w", key, blob.ErrNotFound)
	}
	return o, nil
}

func (o storedObject) objectInfo(key string) blob.Info {
	return blob.Info{Key: key, Size: int64(len(o.data)), Modified: o.modified}
}
