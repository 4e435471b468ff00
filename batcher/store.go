package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// first is the first pointer that the group appends. There is one in a live group.
func (g *group) first() *extent {
	i := slices.IndexFunc(g.payloads, func(pl *payload) bool { return len(pl.extents) > 0 })
	return &g.payloads[i].extents[0]
}

// put makes the part's blob durable as it must be. When that cannot be done, the part is given up.
func (b *Batcher) put(ctx context.Context, p *part) {
	for attempt := 1; ; attempt++ {
		b.orphan(p)
		err := b.putOnce(ctx, p)
		if err == nil {
			p.dirty = false
			return
		}
		b.metrics.putFailures.Inc()
		b.deps.Logger.WarnContext(ctx, "putting a blob failed", slog.Int("attempt", attempt), slog.Any("error", err))
		if attempt >= b.cfg.PutAttempts || errors.Is(err, blob.ErrNoSpace) || b.pause(ctx, attempt) != nil {
			b.orphan(p)
			p.fail(b.putFault(ctx, err, attempt))
			return
		}
	}
}

// orphan counts a blob that nothing will point to, and has the blobs that are built from now on say so. Retention removes it.
func (b *Batcher) orphan(p *part) {
	if p.id != (pointer.BlobID{}) {
		b.metrics.orphans.Inc()
		b.metrics.orphanBytes.Add(float64(p.size))
		b.builds.end(p.build, fateVoid)
		p.id, p.size, p.build = pointer.BlobID{}, 0, 0
	}
}

// putFault is what the writers of a blob that could not be put are told. Nothing of it can become visible.
func (b *Batcher) putFault(ctx context.Context, err error, attempts int) *scribev1.ErrorInfo {
	fault := &scribev1.ErrorInfo{
		Reason:     scribev1.Reason_REASON_NO_BACKEND,
		Message:    fmt.Sprintf("the payloads could not be stored in %d attempts: %v", attempts, err),
		RetryAfter: durationpb.New(b.cfg.RetryMax),
	}
	switch {
	case ctx.Err() != nil:
		fault.Reason = scribev1.Reason_REASON_SHUTTING_DOWN
	case errors.Is(err, blob.ErrNoSpace):
		fault.Reason = scribev1.Reason_REASON_OVERLOADED
	}
	return fault
}

// putOnce builds the blob under a new id and puts it. After a failure the store may hold it or not; it is counted as an orphan.
func (b *Batcher) putOnce(ctx context.Context, p *part) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PutTimeout)
	defer cancel()
	id := pointer.NewBlobID()
	class := p.flush.flow.class
	history := b.builds.begin()
	parts, err := build(p, class, id, b.cfg.Region, history)
	if err != nil {
		b.builds.end(history.Build, fateVoid)
		return err
	}
	size := int64(0)
	for _, piece := range parts {
		size += int64(len(piece))
	}
	p.id, p.size, p.build = id, size, history.Build
	start := b.now()
	if err := b.deps.Blobs.Put(ctx, pointer.Key(class, id), parts...); err != nil {
		return err
	}
	b.metrics.blob(b.now().Sub(start), size)
	return nil
}

// minRecords and maxRecords bound the memory that the pointers of a blob share, in bytes.
const (
	minRecords = 1 << 10
	maxRecords = 64 << 10
)

// build lays the blob out and sets the extents' records.
func build(p *part, class uint32, id pointer.BlobID, region string, history layout.History) ([][]byte, error) {
	lb := layout.NewBuilder(id, class, region, id.Time())
	lb.SetHistory(history)
	var records []byte // of many pointers: most are small
	for _, c := range p.cargo {
		index := -1
		for _, pl := range c.payloads {
			for i := range pl.extents {
				e := &pl.extents[i]
				if index < 0 {
					index = lb.AddBlock(c.block.codec, c.block.stored.B, c.block.raw)
				}
				at := lb.AddPayload(index, uint32(e.offset), uint32(e.length), layout.Entry{
					Shard: pl.group.shard, Epoch: e.epoch, LSN: e.lsn, Start: pl.group.start, Predicted: pl.group.predicted,
					Category: pl.group.category, Settings: pl.group.layoutSettings(),
					Pointer: pointer.Pointer{
						Frames: uint32(e.frames), Messages: uint32(e.messages),
						MinTime: e.minTime, MaxTime: e.maxTime, Sequences: e.runs,
					},
				})
				n := pointer.Len(&at)
				if cap(records)-len(records) < n {
					records = make([]byte, 0, max(n, min(2*cap(records), maxRecords), minRecords))
				}
				start := len(records)
				records = pointer.Append(records, &at)
				e.record = records[start:len(records):len(records)]
			}
		}
	}
	return lb.Finish()
}

// layoutSettings are those of the group's category for a footer. The builder keeps those of the first payload of a category.
func (g *group) layoutSettings() *layout.Settings {
	c := g.settings
	if c == nil {
		return nil
	}
	return &layout.Settings{
		Retention: max(c.GetRetention().AsDuration().Truncate(time.Microsecond), 0), Shards: c.GetShards(),
		Delivery: uint8(c.GetDelivery()), Repeatable: uint8(c.GetRepeatable()), //nolint:gosec // both are small
	}
}

// backoff is how long to wait before another attempt: longer each time, and jittered, so that batchers that failed together do not
// come back together.
func (b *Batcher) backoff(attempt int) time.Duration {
	mean := min(b.cfg.RetryBase<<min(attempt-1, 20), b.cfg.RetryMax)
	return mean/2 + rand.N(mean)
}

// pause waits before another attempt. It fails when ctx ends first.
func (b *Batcher) pause(ctx context.Context, attempt int) error {
	t := time.NewTimer(b.backoff(attempt))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
