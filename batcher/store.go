package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// firstRange returns the range of the first pointer that the batch appends. The batch must be live.
func (g *logBatch) firstRange() *pointerRange {
	i := slices.IndexFunc(g.payloads, func(pl *payload) bool { return len(pl.ranges) > 0 })
	return &g.payloads[i].ranges[0]
}

// putBlob builds the part's blob for the current positions and puts it, with retries. If that fails, it fails the part.
func (b *Batcher) putBlob(ctx context.Context, p *flushPart) {
	for attempt := 1; ; attempt++ {
		b.orphanBlob(p)
		err := b.putOnce(ctx, p)
		if err == nil {
			p.stale = false
			return
		}
		b.metrics.putFailures.Inc()
		b.deps.Logger.WarnContext(ctx, "failed to put a blob", slog.Int("attempt", attempt), slog.Any("error", err))
		if attempt >= b.cfg.PutAttempts || errors.Is(err, blob.ErrNoSpace) || b.waitBackoff(ctx, attempt) != nil {
			b.orphanBlob(p)
			// The frames can never become readable.
			p.failAll(b.storageErrorInfo(ctx, fmt.Errorf("the payloads could not be stored in %d attempts: %w", attempt, err)))
			return
		}
	}
}

// orphanBlob counts the part's blob, if any, as an orphan: no pointer will refer to it. Later blobs report it as void, and
// retention deletes it.
func (b *Batcher) orphanBlob(p *flushPart) {
	if p.id != (pointer.BlobID{}) {
		b.metrics.orphans.Inc()
		b.metrics.orphanBytes.Add(float64(p.size))
		b.history.endBuild(p.build, buildVoid)
		p.id, p.size, p.build = pointer.BlobID{}, 0, 0
	}
}

// putOnce builds the blob under a new id and puts it. After a failure the store may have the blob or not; it counts as an orphan.
func (b *Batcher) putOnce(ctx context.Context, p *flushPart) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PutTimeout)
	defer cancel()
	id := pointer.NewBlobIDAt(b.now().UnixMicro(), b.blobIDs)
	class := p.flush.queue.class
	history := b.history.beginBuild()
	parts, err := buildBlob(p, class, id, b.cfg.Region, history)
	if err != nil {
		b.history.endBuild(history.Build, buildVoid)
		return err
	}
	size := int64(0)
	for _, piece := range parts {
		size += int64(len(piece))
	}
	p.id, p.size, p.build = id, size, history.Build
	b.pusher.pushPart(p)
	start := b.now()
	if err := b.deps.Blobs.Put(ctx, pointer.Key(class, id), parts...); err != nil {
		return err
	}
	b.metrics.countBlob(b.now().Sub(start), size)
	return nil
}

// minRecords and maxRecords bound the chunks of memory for the encoded pointers of a blob, in bytes.
const (
	minRecords = 1 << 10
	maxRecords = 64 << 10
)

// buildBlob returns the parts of the blob, and sets the records of the pointer ranges.
func buildBlob(p *flushPart, class uint32, id pointer.BlobID, region string, history layout.History) ([][]byte, error) {
	lb := layout.NewBuilder(id, class, region, id.Time())
	lb.SetHistory(history)
	var records []byte // shared by many pointers, since most are small
	for _, c := range p.shares {
		index := -1
		for _, pl := range c.payloads {
			for i := range pl.ranges {
				e := &pl.ranges[i]
				if index < 0 {
					index = lb.AddBlock(c.block.codec, c.block.stored.B, c.block.raw)
				}
				at := lb.AddPayload(index, uint32(e.offset), uint32(e.length), layout.Entry{
					Shard: pl.batch.shard, Epoch: e.epoch, LSN: e.lsn, Start: pl.batch.entry.Start, Predicted: pl.batch.entry.Predicted,
					Category: pl.batch.category, Settings: pl.batch.layoutSettings(),
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

// layoutSettings returns the settings of the batch's category for the footer; nil if they are unknown. The builder keeps the
// settings of the first payload of each category.
func (g *logBatch) layoutSettings() *layout.Settings {
	c := g.settings
	if c == nil {
		return nil
	}
	return &layout.Settings{
		Retention: max(c.GetRetention().AsDuration().Truncate(time.Microsecond), 0), Shards: c.GetShards(),
		Delivery: uint8(c.GetDelivery()), Repeatable: uint8(c.GetRepeatable()), //nolint:gosec // both are small
	}
}

// waitBackoff waits before another attempt. It fails when ctx ends first.
func (b *Batcher) waitBackoff(ctx context.Context, attempt int) error {
	return backoff.Sleep(ctx, b.backoffPause(attempt))
}

// backoffPause returns the jittered pause after a number of attempts.
func (b *Batcher) backoffPause(attempt int) time.Duration {
	return backoff.Jitter(b.deps.Random, backoff.Backoff{Min: b.cfg.RetryBase, Max: b.cfg.RetryMax}.Mean(attempt), 0.5)
}
