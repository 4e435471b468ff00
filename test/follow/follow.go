// Package follow has consumers with many lives for the tests of the whole system: each life begins with the checkpoint that the previous
// one saved. What they got is in a history.Trail, which checks it.
//
//	f := follow.New(h, follow.Config{Name: "ann", Category: "orders", Window: time.Second, Servers: servers, Lifetime: 100, Rand: rng})
//	running.Go(func() { err = f.Run(ctx) }) // until ctx ends
//
// Only tests may import this package.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"scribe/consumer"
	"scribe/test/history"
	"scribe/test/program"
)

// Config configures a Follower.
type Config struct {
	Name, Category string
	// Window is the ordering window: 0 is strict, history.Unbounded none.
	Window time.Duration
	// Late means that the follower begins after retention has trimmed; see history.History.FollowLate.
	Late bool
	// Servers are used in turn, one in each life.
	Servers []string
	// Lifetime is the average number of messages after which the follower dies and resumes from its last saved checkpoint, once it has
	// one; 0 = never.
	Lifetime int
	// Pace, if set, gets each message's persisted time, and returns how long to wait before the next message.
	Pace func(persisted time.Time) time.Duration
	// Rest, if set, returns how long the follower is away after a death.
	Rest func() time.Duration
	// Rebuilt, if set, reports whether metadata was rebuilt from blobs since the follower began. Then messages have other persisted times
	// than those that its watermark was made of.
	Rebuilt func() bool
	// Prefetch bounds the bytes that the consumer holds; 0 = 1 MiB.
	Prefetch int64
	// Options are given to its consumers after its own.
	Options []consumer.Option
	// Rand is used by the follower only. Its consumer has randomness of its own.
	Rand *rand.Rand
}

// Follower is a consumer. Its methods may be called from any goroutine while Run runs.
type Follower struct {
	Config
	// Trail is what the follower got, Log what its consumers logged.
	Trail *history.Trail
	Log   program.Log
	// kept is the checkpoint that matches the steps that the trail keeps.
	kept                              string
	reconnects, damaged, deaths, gaps atomic.Int64
}

// New returns a follower of a category that the history knows, from the category's beginning.
func New(h *history.History, c Config) *Follower {
	if c.Prefetch == 0 {
		c.Prefetch = 1 << 20
	}
	f := &Follower{Config: c}
	if c.Late {
		f.Trail = h.FollowLate(c.Category, c.Name, c.Window, time.Now())
	} else {
		f.Trail = h.Follow(c.Category, c.Name, c.Window)
	}
	return f
}

// Reconnects returns how often the follower's streams were reopened.
func (f *Follower) Reconnects() int64 { return f.reconnects.Load() }

// Damaged returns how often the follower met damaged bytes. Each time it ends its life and starts the next one.
func (f *Follower) Damaged() int64 { return f.damaged.Load() }

// Deaths returns how often the follower died, without the deaths by damage.
func (f *Follower) Deaths() int64 { return f.deaths.Load() }

// Gaps returns the number of gaps that the follower was told of, with those that it lost when it died.
func (f *Follower) Gaps() int64 { return f.gaps.Load() }

// Run runs life after life until the context ends, or returns the first error other than damage.
func (f *Follower) Run(ctx context.Context) error {
	for life := 0; ctx.Err() == nil; life++ {
		if life > 0 && f.Rest != nil {
			select {
			case <-time.After(f.Rest()):
			case <-ctx.Done():
			}
		}
		if err := f.liveOnce(ctx, f.Servers[life%len(f.Servers)]); err != nil && ctx.Err() == nil {
			return fmt.Errorf("follower %s of %s: %w\n%s", f.Name, f.Category, err, f.Log.Tail(20))
		}
	}
	return nil
}

// openConsumer opens the consumer of a life.
func (f *Follower) openConsumer(server string) (*consumer.Consumer, error) {
	start := consumer.Earliest()
	if f.kept != "" {
		var err error
		if start, err = consumer.Checkpoint(f.kept); err != nil {
			return nil, fmt.Errorf("its own checkpoint: %w", err)
		}
	}
	options := []consumer.Option{
		consumer.WithStart(start), consumer.WithName(f.Name), consumer.WithPrefetchBytes(f.Prefetch), consumer.WithRequestTimeout(2 * time.Second),
		consumer.WithHeartbeat(100 * time.Millisecond), consumer.WithBackoff(10*time.Millisecond, 300*time.Millisecond),
		consumer.WithLogger(slog.New(slog.NewTextHandler(&f.Log, nil))),
	}
	if f.Window == history.Unbounded {
		options = append(options, consumer.WithWindow(consumer.Unbounded))
	} else {
		options = append(options, consumer.WithWindow(f.Window))
	}
	return consumer.New(server, f.Category, append(options, f.Options...)...)
}

// liveOnce reads until the follower dies, or returns the error that ended the reading.
func (f *Follower) liveOnce(ctx context.Context, server string) error {
	c, err := f.openConsumer(server)
	if err != nil {
		return err
	}
	defer func() {
		f.reconnects.Add(int64(c.Stats().Reconnects)) //nolint:gosec // a few
		_ = c.Close()
	}()
	for m, err := range c.Records(ctx) {
		if f.Late && f.Trail.Len() == 0 && f.gaps.Load() == 0 {
			f.Trail.Begun(time.Now())
		}
		gap, damage := new(consumer.GapError), new(consumer.DamageError)
		switch {
		case errors.As(err, &gap):
			f.Trail.Gap(uint64(gap.Shard), gap.From, gap.To, int(gap.Delivered), string(gap.Reason), time.Now())
			f.gaps.Add(1)
			continue
		case errors.As(err, &damage):
			// Bytes were damaged in transit. The checkpoint is before them, and the next life begins there.
			f.damaged.Add(1)
			f.keepCheckpoint(c)
			return nil
		case err != nil:
			return err
		}
		rebuilt := f.Rebuilt != nil && f.Rebuilt()
		if reached := c.Watermark(); f.Window != history.Unbounded && m.Persisted.Before(reached.Add(-f.Window)) && !rebuilt {
			return fmt.Errorf("invariant 13, watermark: a message persisted at %v came when the watermark was at %v", m.Persisted, reached)
		}
		f.Trail.Record(m.Payload, m.LogicalShard, uint64(m.Shard), m.LSN, m.Index, m.Persisted.UnixMicro())
		switch {
		// A follower that dies without a saved checkpoint starts with what exists by then, and is told nothing of what retention
		// removed until then: so it must not die before.
		case f.Lifetime > 0 && f.kept != "" && f.Rand.IntN(f.Lifetime) == 0:
			f.Trail.Die()
			f.deaths.Add(1)
			return nil
		case f.Rand.IntN(20) == 0:
			f.keepCheckpoint(c)
		}
		if f.Pace == nil {
			continue
		}
		if d := f.Pace(m.Persisted); d > 0 {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// keepCheckpoint saves a checkpoint together with what was read up to it.
func (f *Follower) keepCheckpoint(c *consumer.Consumer) {
	f.kept = c.Checkpoint()
	f.Trail.Keep()
}
