package replicated

import (
	"context"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// done is the result of calls that have none.
type done = struct{}

// Open implements metalog.Log.
func (l *Log) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return writeLeader(ctx, l, func(r metalog.Log) ([]metalog.State, error) { return r.Open(ctx, owner, shards) })
}

// Append implements metalog.Log.
func (l *Log) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return writeLeader(ctx, l, func(r metalog.Log) ([]metalog.Appended, error) { return r.Append(ctx, a) })
}

// Trim implements metalog.Log.
func (l *Log) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := writeLeader(ctx, l, func(r metalog.Log) (done, error) { return done{}, r.Trim(ctx, shard, before) })
	return err
}

// Seal implements metalog.Log.
func (l *Log) Seal(ctx context.Context, shard record.ShardID) (metalog.State, error) {
	return writeLeader(ctx, l, func(r metalog.Log) (metalog.State, error) { return r.Seal(ctx, shard) })
}

// Retire implements metalog.Log.
func (l *Log) Retire(ctx context.Context, category uint32) error {
	_, err := writeLeader(ctx, l, func(r metalog.Log) (done, error) { return done{}, r.Retire(ctx, category) })
	return err
}

// Erase implements metalog.Log.
func (l *Log) Erase(ctx context.Context, category uint32) error {
	_, err := writeLeader(ctx, l, func(r metalog.Log) (done, error) { return done{}, r.Erase(ctx, category) })
	return err
}

// Remove implements metalog.Log.
func (l *Log) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	return writeLeader(ctx, l, func(r metalog.Log) (int, error) { return r.Remove(ctx, shards) })
}

// AdvanceBoundary implements metalog.Log.
func (l *Log) AdvanceBoundary(ctx context.Context, t int64) (int64, error) {
	return writeLeader(ctx, l, func(r metalog.Log) (int64, error) { return r.AdvanceBoundary(ctx, t) })
}

// Annotate implements metalog.Log. Annotations are not replicated.
func (l *Log) Annotate(ctx context.Context, notes []metalog.Annotation) (int, error) {
	return writeLeader(ctx, l, func(r metalog.Log) (int, error) { return r.Annotate(ctx, notes) })
}

// Annotations implements metalog.Log. It asks the replica that Annotate asked.
func (l *Log) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) (notes []metalog.Annotation, until record.LSN, err error) {
	notes, err = writeLeader(ctx, l, func(r metalog.Log) ([]metalog.Annotation, error) {
		var found []metalog.Annotation
		found, until, err = r.Annotations(ctx, shard, from, to, kind, maxBytes)
		return found, err
	})
	return notes, until, err
}

// Read implements metalog.Log.
func (l *Log) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]metalog.Entry, error) { return r.Read(ctx, shard, from, maxRecords, maxBytes) })
}

// Tail implements metalog.Log.
func (l *Log) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]metalog.State, error) { return r.Tail(ctx, shards) })
}

// Seek implements metalog.Log.
func (l *Log) Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]record.LSN, error) { return r.Seek(ctx, shards, t) })
}

// Shards implements metalog.Log.
func (l *Log) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]metalog.State, error) { return r.Shards(ctx, category) })
}

// RemovedShards implements metalog.Log.
func (l *Log) RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]metalog.State, error) { return r.RemovedShards(ctx, category, since) })
}

// Sequences implements metalog.Log.
func (l *Log) Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]metalog.ProducerState, error) {
	return readAny(ctx, l, func(r metalog.Log) ([]metalog.ProducerState, error) { return r.Sequences(ctx, shard, producers) })
}
