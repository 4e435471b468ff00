package batcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
)

// part is what becomes durable in one blob and one transaction: a flush, or groups of one that were divided off because the others
// could get on and these could not. The goroutine that writes it owns it, but for what the comments say.
type part struct {
	flush  *flush
	groups []*group
	cargo  []cargo

	// id is the blob that is in the store; zero while there is none.
	id   pointer.BlobID
	size int64
	// build is the blob's number among those of the batcher.
	build uint64
	// unsure: the outcome of its append is unknown, so the blob may not be an orphan.
	unsure bool
	// dirty: what is in the store, if anything, does not describe the part as it would be appended now.
	dirty bool
	// refusals counts the definite errors of appends that were not a matter of single logs.
	refusals int
	// broken is when the engine began to refuse to work at all; zero while it does not.
	broken   time.Time
	closings int
	// since is when it began to wait for its turn.
	since time.Time
	// early: the blob was put before it was the part's turn, or that was tried.
	early bool

	// wake has a token when something has changed that the part may be waiting for.
	wake chan struct{}

	// Guarded by ledger.mu: how many groups are not at the head of their queues, and whether it is its turn for good.
	blocked    int
	committing bool

	// Guarded by Batcher.mu: whether it counts for its flush's place among those being written.
	attached bool
}

// cargo is a part's share of a block.
type cargo struct {
	block    *block
	payloads []*payload
}

func newPart(f *flush, now time.Time) *part {
	return &part{flush: f, dirty: true, since: now, wake: make(chan struct{}, 1)}
}

// signal wakes the part's goroutine if it waits.
func (p *part) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// unblock is what a group changes that comes to the head of its queue.
func (p *part) unblock() {
	p.blocked--
	if p.blocked == 0 {
		p.signal()
	}
}

// load makes the flush's blocks the part's.
func (p *part) load(f *flush) {
	p.cargo = make([]cargo, len(f.blocks))
	for i, b := range f.blocks {
		b.parts.Store(1)
		p.cargo[i] = cargo{block: b, payloads: b.payloads}
	}
	for _, g := range p.groups {
		for _, pl := range g.payloads {
			pl.extend()
		}
	}
}

// fail gives up a payload.
func (p *part) failPayload(pl *payload, fault *scribev1.ErrorInfo) {
	if pl.fault != nil || len(pl.extents) == 0 {
		return
	}
	pl.fault = fault
	pl.extents = nil
	// The blob must not describe what will not be appended.
	p.dirty = true
	for i := range pl.pieces {
		if c := pl.pieces[i].chain; c != nil {
			c.broken.Store(true)
		}
	}
}

// fail gives up what is left of the part.
func (p *part) fail(fault *scribev1.ErrorInfo) {
	for _, g := range p.groups {
		for _, pl := range g.payloads {
			p.failPayload(pl, fault)
		}
	}
}

// records is the number of pointers that the group appends.
func (g *group) records() int {
	n := 0
	for _, pl := range g.payloads {
		n += len(pl.extents)
	}
	return n
}

// live returns the groups of which something is left.
func (p *part) live() []*group {
	groups := make([]*group, 0, len(p.groups))
	for _, g := range p.groups {
		if g.records() > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// empty reports whether nothing is left.
func (p *part) empty() bool {
	for _, g := range p.groups {
		if g.records() > 0 {
			return false
		}
	}
	return true
}

// number gives every extent its epoch and LSN, counting from the groups' places, and notes whether the blob says otherwise.
func (p *part) number() {
	for _, g := range p.groups {
		lsn := g.lsn
		if g.numbered != g.shifts {
			g.numbered = g.shifts
			p.dirty = p.dirty || g.records() > 0
		}
		for _, pl := range g.payloads {
			for i := range pl.extents {
				e := &pl.extents[i]
				if e.epoch != g.epoch || e.lsn != lsn {
					e.epoch, e.lsn = g.epoch, lsn
					p.dirty = true
				}
				lsn++
			}
		}
	}
}

// write makes a flush durable and tells its writers.
func (b *Batcher) write(f *flush) {
	p := newPart(f, b.now())
	p.groups = f.groups
	b.mu.Lock()
	p.attached = true
	b.mu.Unlock()
	b.metrics.flush(f)
	<-f.afterClaim
	b.ledger.claim(p)
	close(f.claimed)
	b.pack(f)
	p.load(f)
	b.run(b.ctx, p, f.compressed)
}

// pack puts a flush's small payloads into blocks and has them compressed.
func (b *Batcher) pack(f *flush) {
	blocks := pack(f.small, b.cfg.BlockBytes)
	for _, blk := range blocks {
		blk.flush, blk.urgent = f, true
	}
	f.blocks, f.small = append(f.blocks, blocks...), nil
	b.mu.Lock()
	b.mu.acc.packed(f, len(blocks))
	jobs := b.settle()
	b.mu.Unlock()
	jobs.compress = append(jobs.compress, blocks...)
	b.drive(jobs)
}

// run writes a part: it waits until it is its turn in every log, puts the blob, and appends. What cannot get on while the rest can is
// divided off. compressed is closed when the part's blocks are.
func (b *Batcher) run(ctx context.Context, p *part, compressed <-chan struct{}) {
	limit := patience{refusals: b.cfg.CommitAttempts, opening: b.cfg.CommitPatience}
	b.prepare(ctx, p, limit, compressed)
	stalls := 0 // how often it was found to have waited too long
	committed := false
	for !committed && !p.empty() {
		now, slot := b.now(), b.deps.Slot()
		v := b.ledger.look(p, slot, now, limit, true)
		b.open(ctx, v.open)
		switch {
		case ctx.Err() != nil:
			p.fail(b.logFault(ctx, context.Cause(ctx)))
		case len(v.failed) > 0:
			b.giveUp(ctx, p, v.failed)
		case len(v.moved) > 0:
			b.move(ctx, p, v.moved, slot)
		case v.turn:
			committed = b.commit(ctx, p)
		case v.placed && p.id == (pointer.BlobID{}) && !p.early:
			p.early = true
			p.number()
			b.put(ctx, p)
		case v.hopeless && v.ready > 0:
			b.stall(ctx, p, &v) // no blob was put, so dividing costs little
		default:
			stall := p.since.Add(time.Duration(stalls+1) * b.stallAfter())
			if !now.Before(stall) {
				stalls++
				b.stall(ctx, p, &v)
				continue
			}
			if v.at.IsZero() || stall.Before(v.at) {
				v.at = stall
			}
			b.wait(ctx, p, v.at, nil)
		}
	}
	b.finish(p, committed)
}

// prepare opens the part's logs while its blocks are compressed.
func (b *Batcher) prepare(ctx context.Context, p *part, limit patience, compressed <-chan struct{}) {
	for done := false; !done; {
		v := b.ledger.look(p, b.deps.Slot(), b.now(), limit, false)
		b.open(ctx, v.open)
		done = b.wait(ctx, p, v.at, compressed)
	}
	p.since = b.now()
	if compressed != closed {
		b.metrics.stage(stageCompress, p.since.Sub(p.flush.cutAt))
	}
}

// wait waits until something has changed that the part may be waiting for, or until a time when it is not zero. It reports whether
// the channel was closed.
func (b *Batcher) wait(ctx context.Context, p *part, at time.Time, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	default:
	}
	var after <-chan time.Time
	if !at.IsZero() {
		t := time.NewTimer(max(at.Sub(b.now()), 0))
		defer t.Stop()
		after = t.C
	}
	end := ctx.Done()
	if closed != nil {
		end = nil // it will be, soon
	}
	select {
	case <-closed:
		return true
	case <-p.wake:
	case <-after:
	case <-end:
	}
	return false
}

// stallAfter is how long a part waits before what cannot get on is divided off: longer where flushes take long anyway, so that a
// slow store does not get more blobs than a fast one.
func (b *Batcher) stallAfter() time.Duration {
	return max(b.cfg.StallAfter, 2*time.Duration(b.pace.Load()))
}

// stall is what happens when a part has waited for too long: its groups that are ready go on, and new frames of the others' shards
// gather until their queues have moved. What is left waits beside those that are being written.
func (b *Batcher) stall(ctx context.Context, p *part, v *view) {
	late := slices.Concat(v.waiting, v.shut)
	shards := b.ledger.stall(late)
	rest := p
	if v.ready > 0 {
		rest = b.divide(p, late)
	}
	b.mu.Lock()
	for _, s := range shards {
		b.mu.acc.stall(s)
	}
	if v.lonely {
		b.mu.acc.detach(b.now(), rest)
	}
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
	if rest != p {
		b.start(ctx, rest)
	}
}

// start has a part that was divided off written.
func (b *Batcher) start(ctx context.Context, p *part) {
	b.tasks.Go(func() { b.run(ctx, p, closed) })
}

// divide makes groups of a part a part of their own. The caller starts it, or finishes it.
func (b *Batcher) divide(p *part, groups []*group) *part {
	rest := newPart(p.flush, b.now())
	rest.groups, rest.refusals = groups, p.refusals
	b.ledger.divide(p, rest, groups)
	// Only this goroutine changes to whom these groups belong, so it may look without the lock.
	moved := func(g *group) bool { return g.spot.part == rest }
	p.groups = slices.DeleteFunc(p.groups, moved)
	old := p.cargo
	p.cargo, p.dirty = nil, true
	for _, c := range old {
		var stay, leave []*payload
		for _, pl := range c.payloads {
			if moved(pl.group) {
				leave = append(leave, pl)
			} else {
				stay = append(stay, pl)
			}
		}
		if len(stay) > 0 && len(leave) > 0 {
			c.block.parts.Add(1)
		}
		if len(stay) > 0 {
			p.cargo = append(p.cargo, cargo{c.block, stay})
		}
		if len(leave) > 0 {
			rest.cargo = append(rest.cargo, cargo{c.block, leave})
		}
	}
	b.metrics.divided.Inc()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acc.divided(p, rest)
	return rest
}

// dismiss gives up groups of a part, each for its reason. What is left of the part goes on.
func (b *Batcher) dismiss(p *part, groups []*group, faults []*scribev1.ErrorInfo) {
	failing := p
	if len(groups) < len(p.groups) {
		failing = b.divide(p, groups)
	}
	for i, g := range groups {
		for _, pl := range g.payloads {
			failing.failPayload(pl, faults[i])
		}
	}
	if failing != p {
		b.finish(failing, false)
	}
}

// giveUp gives up groups whose logs were tried for too long.
func (b *Batcher) giveUp(ctx context.Context, p *part, failed []failure) {
	groups, faults := make([]*group, len(failed)), make([]*scribev1.ErrorInfo, len(failed))
	for i, f := range failed {
		groups[i] = f.group
		faults[i] = b.logFault(ctx, fmt.Errorf("shard %v cannot be written to: %w", f.group.shard, f.err))
	}
	b.deps.Logger.WarnContext(ctx, "logs are given up", slog.Int("logs", len(groups)), slog.Any("first", groups[0].shard), slog.Any("error", failed[0].err))
	b.dismiss(p, groups, faults)
}

// move takes groups to the logs of the present writer slot: those of the one before are another writer's.
func (b *Batcher) move(ctx context.Context, p *part, groups []*group, slot uint16) {
	if slot == 0 {
		faults := make([]*scribev1.ErrorInfo, len(groups))
		for i := range faults {
			faults[i] = &scribev1.ErrorInfo{
				Reason: scribev1.Reason_REASON_FENCED, Message: "the batcher has lost its writer slot: send to another one",
				RetryAfter: durationpb.New(b.cfg.RetryBase),
			}
		}
		b.dismiss(p, groups, faults)
		return
	}
	moving := p
	if len(groups) < len(p.groups) {
		moving = b.divide(p, groups)
	}
	moving.dirty = true
	resumed := b.ledger.move(moving.groups, slot)
	b.mu.Lock()
	b.mu.acc.resume(b.now(), resumed)
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
	if moving != p {
		b.start(ctx, moving)
	}
}

// finish ends a part: what waits behind it goes on, its memory becomes free, and its writers are told.
func (b *Batcher) finish(p *part, committed bool) {
	resumed := b.ledger.settle(p, committed, b.now())
	switch {
	case committed:
		b.builds.end(p.build, fateCommitted)
		p.correct()
	case p.unsure:
		b.builds.end(p.build, fateUnknown)
	default:
		b.orphan(p)
	}
	freed := b.unload(p)
	end := b.now()
	b.metrics.stage(stageTotal, end.Sub(p.flush.oldest))
	outcome := answer(p)
	b.mu.Lock()
	b.mu.counts.add(outcome)
	b.mu.acc.finished(end, p, freed, end.Sub(p.flush.cutAt))
	b.mu.acc.resume(end, resumed)
	b.pace.Store(int64(b.mu.acc.took))
	jobs := b.settle()
	b.mu.Unlock()
	b.drive(jobs)
	// Writers go on after the memory is free and the counters are right.
	release(p)
}

// unload releases the blocks that no other part needs, and returns their bytes.
func (b *Batcher) unload(p *part) (freed int64) {
	for _, c := range p.cargo {
		if c.block.parts.Add(-1) > 0 {
			continue
		}
		freed += int64(len(c.block.stored.B))
		b.buffers.Put(c.block.stored)
		c.block.stored = nil
	}
	return freed
}
