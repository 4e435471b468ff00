package batcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// blobPart is a flush's blob of one retention class.
type blobPart struct {
	class  uint32
	blocks []*block
	// id is the blob that is in the store; zero while there is none.
	id   pointer.BlobID
	size int64
	// unsure: the outcome of its append is unknown, so it may not be an orphan.
	unsure bool
	// dirty: what is in the store, if anything, does not describe the flush as it would be appended now.
	dirty bool
}

// begin prepares a cut flush for being written.
func (f *flush) begin() {
	parts := make(map[uint32]*blobPart)
	for _, b := range f.blocks {
		part := parts[b.class]
		if part == nil {
			part = &blobPart{class: b.class, dirty: true}
			parts[b.class] = part
			f.blobs = append(f.blobs, part)
		}
		part.blocks = append(part.blocks, b)
		b.part = part
	}
	for _, g := range f.order {
		for _, pl := range g.payloads {
			pl.extend()
		}
	}
}

// fail gives up a payload.
func (pl *payload) fail(fault *scribev1.ErrorInfo) {
	if pl.fault == nil {
		pl.fault = fault
		pl.extents = nil
		// Its blob must not describe what will not be appended.
		pl.block.part.dirty = true
	}
}

// fail gives up what is left of the group.
func (g *group) fail(fault *scribev1.ErrorInfo) {
	for _, pl := range g.payloads {
		if len(pl.extents) > 0 {
			pl.fail(fault)
		}
	}
}

// fail gives up what is left of the flush.
func (f *flush) fail(fault *scribev1.ErrorInfo) {
	for _, g := range f.order {
		g.fail(fault)
	}
}

// live returns the groups of which something is left.
func (f *flush) live() []*group {
	groups := make([]*group, 0, len(f.order))
	for _, g := range f.order {
		if g.records() > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// records is the number of pointers that the group appends.
func (g *group) records() int {
	n := 0
	for _, pl := range g.payloads {
		n += len(pl.extents)
	}
	return n
}

// first is the first pointer that the group appends. There is one in a live group.
func (g *group) first() *extent {
	i := slices.IndexFunc(g.payloads, func(pl *payload) bool { return len(pl.extents) > 0 })
	return &g.payloads[i].extents[0]
}

// number gives every extent its epoch and LSN, counting from the groups' places, and marks the blobs that say otherwise.
func (f *flush) number() {
	for _, g := range f.order {
		lsn := g.lsn
		for _, pl := range g.payloads {
			for i := range pl.extents {
				e := &pl.extents[i]
				if e.epoch != g.epoch || e.lsn != lsn {
					e.epoch, e.lsn = g.epoch, lsn
					pl.block.part.dirty = true
				}
				lsn++
			}
		}
	}
}

// placed reports whether all groups of the blob have a place. A blob is not worth putting before.
func (p *blobPart) placed() bool {
	for _, b := range p.blocks {
		for _, pl := range b.payloads {
			if len(pl.extents) > 0 && pl.group.epoch == 0 {
				return false
			}
		}
	}
	return true
}

// empty reports whether nothing of the blob is left.
func (p *blobPart) empty() bool {
	for _, b := range p.blocks {
		for _, pl := range b.payloads {
			if len(pl.extents) > 0 {
				return false
			}
		}
	}
	return true
}

// fail gives up what is left of the blob.
func (p *blobPart) fail(fault *scribev1.ErrorInfo) {
	for _, b := range p.blocks {
		for _, pl := range b.payloads {
			if len(pl.extents) > 0 {
				pl.fail(fault)
			}
		}
	}
	p.dirty = false
}

// put makes the flush's blobs durable where they are not as they must be. Payloads of a blob that cannot be put fail.
func (b *Batcher) put(ctx context.Context, f *flush) {
	var puts sync.WaitGroup
	for _, part := range f.blobs {
		if !part.dirty || !part.placed() {
			continue
		}
		puts.Go(func() { b.putPart(ctx, part) })
	}
	puts.Wait()
}

func (b *Batcher) putPart(ctx context.Context, part *blobPart) {
	for attempt := 1; ; attempt++ {
		b.orphan(part)
		if part.empty() {
			part.dirty = false
			return
		}
		err := b.putOnce(ctx, part)
		if err == nil {
			part.dirty = false
			return
		}
		b.metrics.putFailures.Inc()
		b.deps.Logger.WarnContext(ctx, "putting a blob failed", slog.Int("attempt", attempt), slog.Any("error", err))
		if attempt >= b.cfg.PutAttempts || errors.Is(err, blob.ErrNoSpace) || b.pause(ctx, attempt) != nil {
			b.orphan(part)
			part.fail(b.putFault(ctx, err, attempt))
			return
		}
	}
}

// orphan counts a blob that nothing will point to. Retention removes it.
func (b *Batcher) orphan(part *blobPart) {
	if part.id != (pointer.BlobID{}) {
		b.metrics.orphans.Inc()
		b.metrics.orphanBytes.Add(float64(part.size))
		part.id, part.size = pointer.BlobID{}, 0
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
func (b *Batcher) putOnce(ctx context.Context, part *blobPart) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PutTimeout)
	defer cancel()
	id := pointer.NewBlobID()
	parts, err := build(part, id, b.cfg.Region)
	if err != nil {
		return err
	}
	size := int64(0)
	for _, p := range parts {
		size += int64(len(p))
	}
	part.id, part.size = id, size
	start := b.now()
	if err := b.deps.Blobs.Put(ctx, pointer.Key(part.class, id), parts...); err != nil {
		return err
	}
	b.metrics.blob(b.now().Sub(start), size)
	return nil
}

// build lays the blob out and sets the extents' records.
func build(part *blobPart, id pointer.BlobID, region string) ([][]byte, error) {
	lb := layout.NewBuilder(id, part.class, region, id.Time())
	for _, b := range part.blocks {
		index := -1
		for _, pl := range b.payloads {
			for i := range pl.extents {
				e := &pl.extents[i]
				if index < 0 {
					index = lb.AddBlock(b.codec, b.stored.B, b.raw)
				}
				p := lb.AddPayload(index, uint32(e.offset), uint32(e.length), layout.Entry{
					Shard: pl.group.shard, Epoch: e.epoch, LSN: e.lsn, Category: pl.group.category,
					Pointer: pointer.Pointer{
						Frames: uint32(e.frames), Messages: uint32(e.messages),
						MinTime: e.minTime, MaxTime: e.maxTime, Sequences: e.runs,
					},
				})
				e.record = pointer.Append(make([]byte, 0, pointer.Len(&p)), &p)
			}
		}
	}
	return lb.Finish()
}

// pause waits before another attempt: longer each time, and jittered, so that batchers that failed together do not come back
// together. It fails when ctx ends first.
func (b *Batcher) pause(ctx context.Context, attempt int) error {
	mean := min(b.cfg.RetryBase<<min(attempt-1, 20), b.cfg.RetryMax)
	t := time.NewTimer(mean/2 + rand.N(mean))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
