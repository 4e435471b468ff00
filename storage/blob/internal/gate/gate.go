// Package gate admits the calls of a store until it is closed, and makes Close wait for the running ones.
package gate

import (
	"context"
	"fmt"

	"scribe/internal/base/lifecycle"
	"scribe/storage/blob"
)

// Gate counts running calls. The zero Gate is open. A call may enter again from within, as the body of a List loop does: while
// Close waits, it is refused instead of deadlocked.
type Gate struct{ calls lifecycle.Calls }

// Enter begins a call. It fails with blob.ErrClosed after Close; otherwise the caller must call Leave.
func (g *Gate) Enter() error {
	if !g.calls.Enter() {
		return blob.ErrClosed
	}
	return nil
}

// EnterKey checks key and ctx, and begins a call.
func (g *Gate) EnterKey(ctx context.Context, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return err
	}
	err := ctx.Err()
	if err == nil {
		err = g.Enter()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
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
