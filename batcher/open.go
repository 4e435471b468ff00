package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"scribe/batcher/logqueue"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// openChunks is the number of concurrent calls among which logs are divided that failed to open before. One bad log fails the
// others of its call; smaller calls isolate it over several attempts.
const openChunks = 8

// openLogs makes this batcher the writer of logs, in the background, and reports the outcome to the queues.
func (b *Batcher) openLogs(ctx context.Context, list []logqueue.Opening) {
	var fresh, again []record.ShardID
	for _, o := range list {
		if o.Failed == 0 {
			fresh = append(fresh, o.Shard)
		} else {
			again = append(again, o.Shard)
		}
	}
	if len(fresh) > 0 {
		b.tasks.Go(func() { b.openAll(ctx, fresh) })
	}
	for chunk := range slices.Chunk(again, max((len(again)+openChunks-1)/openChunks, 1)) {
		b.tasks.Go(func() { b.openAll(ctx, chunk) })
	}
}

func (b *Batcher) openAll(ctx context.Context, shards []record.ShardID) {
	for some := range slices.Chunk(shards, metalog.MaxShards) {
		b.openSome(ctx, some)
	}
}

// openSome opens logs in one call, and repeats it without logs that can never be opened. It returns how many are open, and whether
// another attempt is useless.
func (b *Batcher) openSome(ctx context.Context, shards []record.ShardID) (opened int, ok bool) {
	for len(shards) > 0 {
		states, err := b.openOnce(ctx, shards)
		if err == nil {
			return b.logsOpened(states), true
		}
		refused := openRefusals(err, shards)
		for s, why := range refused {
			b.logUnusable(s, why)
		}
		left := slices.DeleteFunc(slices.Clone(shards), func(s record.ShardID) bool { return refused[s] != nil })
		if len(left) == len(shards) {
			b.deps.Logger.WarnContext(ctx, "failed to open logs", slog.Int("logs", len(shards)), slog.Any("error", err))
			b.queues.OpenFailed(shards, err, b.now())
			return 0, false
		}
		shards = left
	}
	return 0, true
}

// logsOpened passes the states of opened logs to the queues, and returns how many there are; some logs may be sealed.
func (b *Batcher) logsOpened(states []metalog.State) int {
	usable := states[:0]
	for _, s := range states {
		if s.Sealed {
			b.logUnusable(s.Shard, metalog.ErrSealed)
			continue
		}
		usable = append(usable, s)
	}
	b.queues.Opened(usable, b.now())
	b.metrics.opens.Add(float64(len(usable)))
	return len(usable)
}

// logUnusable marks a log that accepts no records or can never be opened. This comes before its writers are answered, since they
// may send the frames again at once.
func (b *Batcher) logUnusable(s record.ShardID, why error) {
	if errors.Is(why, metalog.ErrSealed) {
		b.sealedLogs.addLog(s)
	}
	b.queues.Unusable(s, why, b.now())
}

// openRefusals returns the logs that made the call fail and would do so again, with their errors.
func openRefusals(err error, shards []record.ShardID) map[record.ShardID]error {
	out := make(map[record.ShardID]error)
	if e := new(metalog.RefusedError); errors.As(err, &e) {
		for _, r := range e.Refusals {
			out[r.State.Shard] = r.Err
		}
	}
	if e := new(metalog.CorruptError); errors.As(err, &e) {
		out[e.Shard] = err
	}
	if errors.Is(err, metalog.ErrInvalid) {
		for _, s := range shards {
			out[s] = err
		}
	}
	return out
}

func (b *Batcher) openOnce(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.LogTimeout)
	defer cancel()
	states, err := b.deps.Log.Open(ctx, b.deps.Owner, shards)
	if err == nil && len(states) != len(shards) {
		err = fmt.Errorf("the metadata engine answered for %d of %d logs", len(states), len(shards))
	}
	return states, err
}
