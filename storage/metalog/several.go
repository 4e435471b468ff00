package metalog

import (
	"context"
	"fmt"

	"scribe/internal/format/record"
)

// Looker is a Log whose shards may be in several engines, each with a clock of its own. What it tells of one shard is as good as with one
// engine; what it tells of one bounds no other.
type Looker interface {
	// Look is Shards with a horizon: no shard that is not among the states brings a record with a persisted time below it. A horizon of 0
	// means that all of the category's shards are in one engine, always were, and have one clock.
	Look(ctx context.Context, category uint32) (states []State, horizon int64, err error)
}

// Placer is a Log whose shards may be in several engines.
type Placer interface {
	// EngineOf returns the name of the engine to which an Append of a shard would go, as far as it is known. An Append over shards of several
	// engines fails with a *SpreadError.
	EngineOf(shard record.ShardID) string
}

// SpreadError is an ErrInvalid of an Append over shards of several engines: a transaction is of one. The caller knows more of where shards are
// after it: see Placer.
type SpreadError struct {
	// Shard and Other are shards of the append, Engine and OtherEngine where they are.
	Shard, Other        record.ShardID
	Engine, OtherEngine string
}

// Error implements error.
func (e *SpreadError) Error() string {
	return fmt.Sprintf("%v: an append over two metadata engines: shard %v is in %q, and shard %v in %q: append to them in two transactions",
		ErrInvalid, e.Shard, e.Engine, e.Other, e.OtherEngine)
}

// Unwrap makes errors.Is(err, ErrInvalid) hold.
func (e *SpreadError) Unwrap() error { return ErrInvalid }
