// Package memory keeps blobs in memory: the store of tests and of a cell that need not survive its process. It is a complete
// implementation of blob.Store except for durability, and passes the acceptance suite of package blob.
package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/storage/blob"
	"scribe/storage/blob/internal/gate"
)

// Store is a blob.Store in memory.
type Store struct {
	*gate.Store
	max int64

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

// New returns an empty store without a bound.
func New() *Store { return NewLimited(0) }

// NewLimited returns an empty store that accepts at most maxBytes of blobs and then fails with blob.ErrNoSpace; 0 means no bound.
func NewLimited(maxBytes int64) *Store {
	s := &Store{max: maxBytes}
	s.Store = gate.NewStore(new(gate.Gate), gate.Engine{
		Put: s.putBlob, ReadAt: s.readBlob, Stat: s.statBlob, List: s.listBlobs, Delete: s.deleteBlob, Release: s.dropBlobs,
	})
	s.mu.blobs = map[string]storedObject{}
	return s
}

func (s *Store) putBlob(_ context.Context, key string, parts [][]byte) error {
	data := slices.Concat(parts...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.mu.blobs[key]; ok {
		return blob.ErrExists
	}
	if s.max > 0 && s.mu.bytes+int64(len(data)) > s.max {
		return fmt.Errorf("%w: %d bytes beside %d, the limit is %d", blob.ErrNoSpace, len(data), s.mu.bytes, s.max)
	}
	s.mu.blobs[key] = storedObject{data: data, modified: time.Now()}
	s.mu.bytes += int64(len(data))
	return nil
}

func (s *Store) readBlob(_ context.Context, key string, dst []byte, off int64) error {
	o, err := s.getObject(key)
	if err != nil {
		return err
	}
	if size := int64(len(o.data)); off < 0 || off > size || int64(len(dst)) > size-off {
		return fmt.Errorf("%w of %d bytes", blob.ErrRange, size)
	}
	copy(dst, o.data[off:])
	return nil
}

func (s *Store) statBlob(_ context.Context, key string) (blob.Info, error) {
	o, err := s.getObject(key)
	if err != nil {
		return blob.Info{}, err
	}
	return o.objectInfo(key), nil
}

// listBlobs lists the blobs that exist when it begins.
func (s *Store) listBlobs(_ context.Context, prefix string, yield func(blob.Info) error) error {
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
		if err := yield(info); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) deleteBlob(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.bytes -= int64(len(s.mu.blobs[key].data))
	delete(s.mu.blobs, key)
	return nil
}

func (s *Store) dropBlobs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mu.blobs)
	s.mu.bytes = 0
}

// Bytes returns the sum of the sizes of all blobs.
func (s *Store) Bytes() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.bytes
}

func (s *Store) getObject(key string) (storedObject, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.mu.blobs[key]
	if !ok {
		return storedObject{}, blob.ErrNotFound
	}
	return o, nil
}

func (o storedObject) objectInfo(key string) blob.Info {
	return blob.Info{Key: key, Size: int64(len(o.data)), Modified: o.modified}
}
