// Package gate has what the engines of blob.Store share: the admission of calls until the store is closed, the check of keys, and
// errors that name the call and its key.
package gate

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"scribe/internal/base/lifecycle"
	"scribe/storage/blob"
)

// Gate counts running calls. The zero Gate is open. A call may enter again from within, as the body of a List loop does: while
// the store waits for its end, it is refused instead of deadlocked.
type Gate struct{ calls lifecycle.Calls }

// Enter begins a call. It fails with blob.ErrClosed after Close; otherwise the caller must call Leave.
func (g *Gate) Enter() error {
	if !g.calls.Enter() {
		return blob.ErrClosed
	}
	return nil
}

// Leave ends a call.
func (g *Gate) Leave() { g.calls.Leave() }

// Close refuses further calls and waits for the running ones. A repeated Close waits too.
func (g *Gate) Close() {
	g.calls.Drain()
	<-g.calls.Idle()
}

// Engine is what differs between stores. Its functions get valid keys only, and do not name them in errors.
type Engine struct {
	Put    func(ctx context.Context, key string, parts [][]byte) error
	ReadAt func(ctx context.Context, key string, dst []byte, off int64) error
	Stat   func(ctx context.Context, key string) (blob.Info, error)
	// List passes each blob to yield, and returns yield's error.
	List func(ctx context.Context, prefix string, yield func(blob.Info) error) error
	// Delete may fail with blob.ErrNotFound for a missing blob.
	Delete func(ctx context.Context, key string) error
	// Release ends the store, after all calls have ended. It may be called again.
	Release func()
}

// Store is the blob.Store of an engine.
type Store struct {
	gate   *Gate
	engine Engine
}

var _ blob.Store = (*Store)(nil)

// NewStore returns the store of an engine. Closing it closes the gate.
func NewStore(g *Gate, e Engine) *Store { return &Store{gate: g, engine: e} }

// callWithKey admits a call, and names the call and its key in the error of run.
func (s *Store) callWithKey(ctx context.Context, method, key string, run func() error) error {
	if err := blob.CheckKey(key); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	err := ctx.Err()
	if err == nil {
		err = s.gate.Enter()
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", method, key, err)
	}
	defer s.gate.Leave()
	if err := run(); err != nil {
		return fmt.Errorf("%s %s: %w", method, key, err)
	}
	return nil
}

// Put implements blob.Store.
func (s *Store) Put(ctx context.Context, key string, parts ...[]byte) error {
	return s.callWithKey(ctx, "put", key, func() error { return s.engine.Put(ctx, key, parts) })
}

// ReadAt implements blob.Store.
func (s *Store) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	return s.callWithKey(ctx, "read", key, func() error {
		if err := s.engine.ReadAt(ctx, key, dst, off); err != nil {
			return fmt.Errorf("%d bytes at %d: %w", len(dst), off, err)
		}
		return nil
	})
}

// Stat implements blob.Store.
func (s *Store) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = s.callWithKey(ctx, "stat", key, func() error {
		info, err = s.engine.Stat(ctx, key)
		return err
	})
	return info, err
}

// List implements blob.Store.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := s.listBlobs(ctx, prefix, yield); err != nil && !errors.Is(err, errStopped) {
			yield(blob.Info{}, fmt.Errorf("list %q: %w", prefix, err))
		}
	}
}

// errStopped means that the caller left the loop.
var errStopped = errors.New("stopped")

func (s *Store) listBlobs(ctx context.Context, prefix string, yield func(blob.Info, error) bool) error {
	if err := blob.CheckPrefix(prefix); err != nil {
		return err
	}
	if err := s.gate.Enter(); err != nil {
		return err
	}
	defer s.gate.Leave()
	err := s.engine.List(ctx, prefix, func(info blob.Info) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !yield(info, nil) {
			return errStopped
		}
		return nil
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}

// Delete implements blob.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	return s.callWithKey(ctx, "delete", key, func() error {
		if err := s.engine.Delete(ctx, key); !errors.Is(err, blob.ErrNotFound) {
			return err
		}
		return nil
	})
}

// Close implements blob.Store.
func (s *Store) Close() error {
	s.gate.Close()
	s.engine.Release()
	return nil
}
