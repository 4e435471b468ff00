package router

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// WatchShards implements metalog.Log. It watches the root, and every engine once the category has left the root.
func (l *Log) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	if err := l.enterCall(ctx); err != nil {
		return err
	}
	defer l.calls.Leave()
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.life, func() { cancel(metalog.ErrClosed) })()
	w := &categoryWatch{l: l, ctx: inner, end: cancel, category: category, fn: fn, known: map[record.ShardID]bool{}, watched: map[string]bool{}}
	err := w.watchEngines()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if cause := context.Cause(inner); cause != nil {
		return cause
	}
	return err
}

// categoryWatch is a call of WatchShards.
type categoryWatch struct {
	l        *Log
	ctx      context.Context //nolint:containedctx // of the call
	end      context.CancelCauseFunc
	category uint32
	running  sync.WaitGroup
	watched  map[string]bool

	mu    sync.Mutex // held while fn runs
	fn    func([]record.ShardID) error
	known map[record.ShardID]bool
	begun bool
}

// watchEngines begins with what exists, and then watches the engines that may have more.
func (w *categoryWatch) watchEngines() error {
	defer func() {
		w.end(nil)
		w.running.Wait()
	}()
	for failures := 0; w.ctx.Err() == nil; {
		changed := w.l.awaitChange()
		home, err := w.l.findHome(w.ctx, w.category)
		if err == nil && !w.begun {
			err = w.tellExisting()
		}
		if err != nil {
			if !w.begun || isFinal(err) {
				return err // as an engine that can't list its shards
			}
			failures++
			w.l.logger.WarnContext(w.ctx, "the metadata engines do not tell where a category is, asking again", slog.Uint64("category_id", uint64(w.category)), slog.Any("error", err))
			if err := w.l.sleep(w.ctx, w.l.pauses.Pause(failures)); err != nil {
				return err
			}
			continue
		}
		failures = 0
		for _, e := range w.l.engines.Load().order {
			if !w.watched[e.Name] && (e.Name == w.l.root || home.version != 0) {
				w.watched[e.Name] = true
				w.running.Go(func() { w.watchEngine(e.Name) })
			}
		}
		select {
		case <-w.ctx.Done():
		case <-changed:
		}
	}
	return nil
}

// tellExisting tells the shards that exist.
func (w *categoryWatch) tellExisting() error {
	states, err := w.l.Shards(w.ctx, w.category)
	if err != nil {
		return err
	}
	ids := make([]record.ShardID, len(states))
	for i := range states {
		ids[i] = states[i].Shard
	}
	return w.tellShards(ids)
}

// tellShards tells those of the shards that the caller does not know; the first time even if there are none.
func (w *categoryWatch) tellShards(shards []record.ShardID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.ctx.Err(); err != nil {
		return err
	}
	var fresh []record.ShardID
	for _, s := range shards {
		if !w.known[s] {
			w.known[s] = true
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 && w.begun {
		return nil
	}
	w.begun = true
	if err := w.fn(fresh); err != nil {
		w.end(err)
		return err
	}
	return nil
}

// watchEngine watches one engine until the call ends, again after failures that pass.
func (w *categoryWatch) watchEngine(name string) {
	for failures := 0; w.ctx.Err() == nil; {
		e, err := w.l.engine(name)
		if err == nil {
			err = e.WatchShards(w.ctx, w.category, func(shards []record.ShardID) error {
				failures = 0
				return w.tellShards(shards)
			})
		}
		if w.ctx.Err() != nil {
			return
		}
		if err != nil && isFinal(err) {
			w.end(err)
			return
		}
		if failures++; failures == 1 && !errors.Is(err, metalog.ErrClosed) {
			w.l.logger.WarnContext(w.ctx, "a metadata engine does not tell of new logs: watching again", slog.String("engine", name), slog.Any("error", err))
		}
		if w.l.sleep(w.ctx, w.l.pauses.Pause(failures)) != nil {
			return
		}
	}
}
