package router

import (
	"context"
	"fmt"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/moving"
)

// Relocation moves a category from one engine to another: where its logs are created, and those that exist. Each step can be repeated, so who
// finds one that another process began runs it again.
//
// The order of the steps is what makes it safe. The logs go first, one by one. Then the old engine stops creating logs of the category, at a time of its
// clock: whoever has looked at the category before has a horizon below it. What it has created meanwhile follows. Only then, when it has none left, the new
// one creates them, and its clock has passed that time. So a category has its logs in two engines at most, and in one when nothing is on its way: an
// engine to which a category comes back, and which then answers that there is no such log, leaves out none that was created elsewhere. Before the new
// engine creates or adopts any, its boundary is at least that of the old one, which a collector of blobs that knows only the old one has put forward.
type Relocation struct {
	Category uint32
	From, To Engine
	// Version orders the homes of the category: it is above that of every earlier relocation of it, and that of this one when it is run again.
	Version uint64
	// Moves are the settings of the moves of single logs.
	Moves moving.Options
	// Pause is the time between two logs, so that a category with many does not hold up the engines.
	Pause time.Duration
}

// Run carries out the relocation, and returns how many logs it has moved or found moved. What it has moved stays so when it fails.
func (r *Relocation) Run(ctx context.Context) (moved int, err error) {
	if retired, err := r.endRetired(ctx); err != nil || retired {
		return 0, err
	}
	// Nobody creates logs of the category between its leaving and its coming, so most of them go before.
	if moved, err = r.MoveLogs(ctx); err != nil {
		return moved, err
	}
	mark, exists, err := r.leave(ctx)
	if err != nil || !exists {
		return moved, err
	}
	if moved, err = r.MoveLogs(ctx); err != nil {
		return moved, err
	}
	return moved, r.come(ctx, mark)
}

// MoveHome makes the new engine the one that creates the logs of the category, and leaves those that exist where they are. The category must not have been
// there before: a router would take logs for missing that it does not find on the way from the root to there. exists is false if the category was retired:
// then it is retired there, too.
func (r *Relocation) MoveHome(ctx context.Context) (exists bool, err error) {
	mark, exists, err := r.leave(ctx)
	if err != nil || !exists {
		return false, err
	}
	return true, r.come(ctx, mark)
}

// leave makes the old engine one that creates no logs of the category.
func (r *Relocation) leave(ctx context.Context) (mark metalog.Forward, exists bool, err error) {
	mark, err = r.From.Log.ForwardCategory(ctx, r.Category, metalog.Forward{To: r.To.Name, Version: r.Version})
	if err != nil {
		return mark, false, fmt.Errorf("category %d leaves the engine %q: %w", r.Category, r.From.Name, err)
	}
	if err := (&boundedAdopter{Log: r.To.Log, from: r.From.Log}).raiseBoundary(ctx); err != nil {
		return mark, false, err
	}
	retired, err := r.endRetired(ctx)
	return mark, err == nil && !retired, err
}

// endRetired retires the category in the new engine if it is retired in the old one: whoever retires it knows the engine that it leaves, but perhaps not
// the one that it goes to.
func (r *Relocation) endRetired(ctx context.Context) (retired bool, err error) {
	states, err := r.From.Log.Tail(ctx, []record.ShardID{probeShard(r.Category)})
	if err != nil || !states[0].Sealed {
		return false, err
	}
	return true, r.To.Log.Retire(ctx, r.Category)
}

// come makes the new engine one that creates logs of the category.
func (r *Relocation) come(ctx context.Context, mark metalog.Forward) error {
	if _, err := r.To.Log.ForwardCategory(ctx, r.Category, metalog.Forward{Version: r.Version, Time: mark.Time}); err != nil {
		return fmt.Errorf("category %d comes to the engine %q: %w", r.Category, r.To.Name, err)
	}
	return nil
}

// MoveLogs moves the logs of the category that the old engine has, and finishes the moves of those that it has handed over.
func (r *Relocation) MoveLogs(ctx context.Context) (moved int, err error) {
	logs, err := r.From.Log.Shards(ctx, r.Category)
	if err != nil {
		return 0, err
	}
	to := &boundedAdopter{Log: r.To.Log, from: r.From.Log}
	for _, st := range logs {
		if st.MovedTo != "" && st.MovedTo != r.To.Name {
			continue // it left for another engine before
		}
		if err := r.moveLog(ctx, st.Shard, to); err != nil {
			return moved, err
		}
		if moved++; r.Pause > 0 {
			if err := backoff.Sleep(ctx, r.Pause); err != nil {
				return moved, err
			}
		}
	}
	return moved, nil
}

func (r *Relocation) moveLog(ctx context.Context, shard record.ShardID, to metalog.Log) error {
	stays, err := to.Stays(ctx, shard)
	if err != nil {
		return err
	}
	if len(stays) >= metalog.MaxStays { // else it would be handed over and not be adopted
		return fmt.Errorf("%w: shard %v was in the engine %q %d times before, and has records of each: trim it, or wait until they expire", metalog.ErrInvalid, shard, r.To.Name, len(stays))
	}
	_, err = moving.MoveLog(ctx, moving.Move{Shard: shard, From: r.From.Name, To: r.To.Name, Source: r.From.Log, Destination: to}, r.Moves)
	return err
}

// boundedAdopter is an engine that adopts logs only when its boundary is at least that of the engine which handed them over. Between the two steps
// of a move nobody appends to the log, and a collector that saw it before has put the boundary of the old engine forward before.
type boundedAdopter struct {
	metalog.Log
	from   metalog.Log
	raised int64
}

// MoveIn implements metalog.Log.
func (b *boundedAdopter) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (metalog.State, error) {
	if err := b.raiseBoundary(ctx); err != nil {
		return metalog.State{}, err
	}
	return b.Log.MoveIn(ctx, h, producers)
}

func (b *boundedAdopter) raiseBoundary(ctx context.Context) error {
	boundary, err := b.from.AdvanceBoundary(ctx, 0)
	if err == nil && boundary > b.raised {
		if b.raised, err = b.Log.AdvanceBoundary(ctx, boundary); err == nil && b.raised < boundary {
			err = fmt.Errorf("the boundary of the engine is %d, below %d", b.raised, boundary)
		}
	}
	if err != nil {
		return fmt.Errorf("metalog: the boundary of deleted blobs: %w", err)
	}
	return nil
}
