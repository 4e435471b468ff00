package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"golang.org/x/sync/semaphore"

	"scribe/storage/kv"
)

const maxID = math.MaxUint32

// errNoIDs means that all ids are used.
var errNoIDs = errors.New("all 4294967295 category ids are used: set up a new cell")

// idAllocator hands out ids of categories. It takes them from the counter in the store in blocks, so that creates do not conflict
// with each other's transactions.
//
// The counter is above every id ever handed out. An id whose create definitely failed is handed out again; an id whose create has
// an unknown outcome is not.
type idAllocator struct {
	store kv.Store
	block uint32
	// turn is held by the one call that takes a block; the others wait for it.
	turn *semaphore.Weighted

	mu struct {
		sync.Mutex
		// Ids in [next, end) belong to this process. They have 64 bits, since end may be one more than the largest id.
		next, end uint64
		// revision is the counter's revision after the last write of this process; 0 before the first.
		revision uint64
		returned []uint32
	}
}

func newIDs(store kv.Store, block uint32) *idAllocator {
	return &idAllocator{store: store, block: block, turn: semaphore.NewWeighted(1)}
}

// takeID returns an id that was never used for a category.
func (g *idAllocator) takeID(ctx context.Context) (uint32, error) {
	for {
		if id, ok := g.takeOwn(); ok {
			return id, nil
		}
		if err := g.takeBlock(ctx); err != nil {
			return 0, err
		}
	}
}

func (g *idAllocator) takeOwn() (uint32, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.mu.returned); n > 0 {
		id := g.mu.returned[n-1]
		g.mu.returned = g.mu.returned[:n-1]
		return id, true
	}
	if g.mu.next == g.mu.end {
		return 0, false
	}
	g.mu.next++
	return uint32(g.mu.next - 1), true
}

// giveBack takes back an id that no category got.
func (g *idAllocator) giveBack(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.returned = append(g.mu.returned, id)
}

// takeBlock takes a block of ids, unless another call has done so.
func (g *idAllocator) takeBlock(ctx context.Context) error {
	if err := g.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer g.turn.Release(1)
	g.mu.Lock()
	enough := g.mu.next < g.mu.end || len(g.mu.returned) > 0
	g.mu.Unlock()
	if enough {
		return nil
	}
	for {
		next, revision, err := readCounter(ctx, g.store)
		if err != nil {
			return err
		}
		if next > maxID {
			return errNoIDs
		}
		end := min(next+uint64(g.block), maxID+1)
		revision, err = g.store.Commit(ctx, kv.Put(nextIDKey, encodeNextID(end)).If(revision))
		switch {
		case errors.Is(err, kv.ErrConflict):
			continue // another control plane took a block
		case err != nil:
			return fmt.Errorf("take ids of categories: %w", err)
		}
		g.mu.Lock()
		g.mu.next, g.mu.end, g.mu.revision = next, end, revision
		g.mu.Unlock()
		return nil
	}
}

// NextID returns the id from which on the control plane of a store gives out ids of categories: 1 for a new store.
func NextID(ctx context.Context, store kv.Store) (uint64, error) {
	next, _, err := readCounter(ctx, store)
	return next, err
}

// readCounter reads the counter: the next id, and the counter's revision, 0 if the counter does not exist.
func readCounter(ctx context.Context, store kv.Store) (next, revision uint64, err error) {
	e, err := store.Get(ctx, nextIDKey)
	if errors.Is(err, kv.ErrNotFound) {
		return 1, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the counter of category ids: %w", err)
	}
	next, err = decodeNextID(e.Value)
	return next, e.Revision, err
}

// releaseBlock gives the unused end of the block back, so that a restart skips no ids. No other call may run. It fails without
// harm if another control plane has taken a block since.
func (g *idAllocator) releaseBlock(ctx context.Context) error {
	g.mu.Lock()
	next, end, revision := g.mu.next, g.mu.end, g.mu.revision
	g.mu.end = next
	g.mu.Unlock()
	if revision == 0 || next == end {
		return nil
	}
	_, err := g.store.Commit(ctx, kv.Put(nextIDKey, encodeNextID(next)).If(revision))
	if err != nil && !errors.Is(err, kv.ErrConflict) {
		return fmt.Errorf("give back ids of categories: %w", err)
	}
	return nil
}
