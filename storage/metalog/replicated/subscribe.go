package replicated

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// settled is how long a subscription at a replica lasts at least for its end to be no failure of the search for one.
const settled = time.Second

// followReplicas runs a subscription at one replica after another. It ends with ctx, with the Log, when the caller's function fails,
// with an error that is about the request, and when no replica has brought anything for the Log's patience.
//
// run follows one replica, and calls brought for what the replica brings, with the error of the caller's function.
func (l *Log) followReplicas(ctx context.Context, run func(ctx context.Context, r metalog.Log, brought func(error) error) error) error {
	if err := l.enterCall(ctx); err != nil {
		return err
	}
	defer l.calls.Leave()
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.life, cancel)()
	progress, failures := time.Now(), 0
	for {
		list := l.known.Load()
		i, began := list.order()[0], time.Now()
		var broken error
		err := run(inner, list.replicas[i].Log, func(err error) error {
			progress, broken = time.Now(), err
			return err
		})
		switch {
		case broken != nil:
			return broken
		case ctx.Err() != nil:
			return ctx.Err()
		case l.life.Err() != nil:
			return metalog.ErrClosed
		case err != nil && !helpsElsewhere(err):
			return err
		}
		list.present.ReportOutcome(list.urls[i], errors.Join(errEnded, err))
		if failures++; time.Since(began) >= settled {
			failures = 0
		}
		if failures < len(list.replicas) {
			continue
		}
		if time.Since(progress) > l.patience {
			return fmt.Errorf("metalog: none of %d replicas serves the subscription: %w", len(list.replicas), err)
		}
		if err := l.sleep(ctx, l.pauses.Pause(failures-len(list.replicas)+1), func(cause error) error { return cause }); err != nil {
			return err
		}
	}
}

// errEnded means that a replica ended a subscription.
var errEnded = errors.New("metalog: the replica ended the subscription")

// Subscribe implements metalog.Log.
func (l *Log) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	heartbeat, invalid := metalog.ValidateSubscribe(from, heartbeat)
	if invalid != nil {
		return invalid
	}
	f := newFollowedShards(from)
	return l.followReplicas(ctx, func(ctx context.Context, r metalog.Log, brought func(error) error) error {
		positions := f.positions()
		if len(positions) == 0 && len(from) > 0 { // every shard has ended
			<-ctx.Done()
			return ctx.Err()
		}
		return r.Subscribe(ctx, positions, heartbeat, func(updates []metalog.Update) error {
			fresh, err := f.takeUpdates(updates)
			if err != nil {
				return err
			}
			if len(fresh) == 0 {
				return brought(nil)
			}
			return brought(fn(fresh))
		})
	})
}

// WatchShards implements metalog.Log.
func (l *Log) WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error {
	known := make(map[record.ShardID]bool)
	first := true
	return l.followReplicas(ctx, func(ctx context.Context, r metalog.Log, brought func(error) error) error {
		return r.WatchShards(ctx, category, func(shards []record.ShardID) error {
			var fresh []record.ShardID
			for _, shard := range shards {
				if !known[shard] {
					known[shard] = true
					fresh = append(fresh, shard)
				}
			}
			if len(fresh) == 0 && !first {
				return brought(nil)
			}
			first = false
			return brought(fn(fresh))
		})
	})
}

// followedShards is what a subscriber was told of its shards.
type followedShards struct {
	order   []record.ShardID
	byShard map[record.ShardID]*followedShard
	fresh   []metalog.Update // reused
}

// followedShard is what a subscriber was told of a shard.
type followedShard struct {
	next      record.LSN // of the next record
	tail      record.LSN
	watermark int64
	// ended says that the shard was sealed, or goes on in another engine.
	ended bool
}

func newFollowedShards(from []metalog.Position) *followedShards {
	f := &followedShards{byShard: make(map[record.ShardID]*followedShard, len(from))}
	for _, p := range from {
		f.order = append(f.order, p.Shard)
		f.byShard[p.Shard] = &followedShard{next: p.LSN}
	}
	return f
}

// positions returns where to go on.
func (f *followedShards) positions() []metalog.Position {
	var out []metalog.Position
	for _, shard := range f.order {
		if s := f.byShard[shard]; !s.ended {
			out = append(out, metalog.Position{Shard: shard, LSN: s.next})
		}
	}
	return out
}

// takeUpdates returns what is new in a replica's updates, valid until the next call.
func (f *followedShards) takeUpdates(updates []metalog.Update) ([]metalog.Update, error) {
	f.fresh = f.fresh[:0]
	for i := range updates {
		s := f.byShard[updates[i].Shard]
		if s == nil || s.ended {
			continue
		}
		u, err := s.takeUpdate(updates[i])
		if err != nil {
			return nil, err
		}
		if u.Watermark != 0 || len(u.Entries) > 0 || u.TrimmedTo != 0 || u.Sealed || u.MovedTo != "" {
			f.fresh = append(f.fresh, u)
		}
	}
	return f.fresh, nil
}

// takeUpdate returns an update of a replica, which may be behind an earlier one, as the subscriber has to see it. An update that
// violates the contract is an error.
func (s *followedShard) takeUpdate(u metalog.Update) (metalog.Update, error) {
	if u.TrimmedTo <= s.next {
		u.TrimmedTo = 0
	}
	next := max(s.next, u.TrimmedTo)
	for len(u.Entries) > 0 && u.Entries[0].LSN < next {
		u.Entries = u.Entries[1:]
	}
	if len(u.Entries) > 0 && u.Entries[0].LSN != next {
		return u, fmt.Errorf("metalog: shard %v: a replica sent LSN %d, expected %d", u.Shard, u.Entries[0].LSN, next)
	}
	next += record.LSN(len(u.Entries))
	if u.Sealed && next < s.tail {
		// A replica where the shard was erased does not know the tail. The subscriber does: what it lacks was trimmed.
		if len(u.Entries) > 0 {
			return u, fmt.Errorf("metalog: shard %v: a replica has it sealed after LSN %d, but its tail was %d", u.Shard, next-1, s.tail)
		}
		u.TrimmedTo, next = s.tail, s.tail
	}
	u.NextLSN = max(u.NextLSN, s.tail)
	if next < u.NextLSN {
		u.Watermark, u.Sealed, u.MovedTo = 0, false, ""
	} else {
		u.Watermark = max(u.Watermark, s.watermark)
	}
	s.next, s.tail, s.ended = next, u.NextLSN, u.Sealed || u.MovedTo != ""
	s.watermark = max(s.watermark, u.Watermark)
	return u, nil
}
