package batcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/batcher/logqueue"
	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
)

// flushPart becomes durable in one blob and one transaction: a flush, or log batches divided off from one because some logs were
// blocked. The goroutine that writes it owns it, except for the fields marked otherwise.
type flushPart struct {
	logqueue.Part
	flush   *flush
	batches []*logBatch
	entries []*logqueue.Entry // of batches
	shares  []blockShare

	// id is the part's blob in the store; zero while there is none.
	id   pointer.BlobID
	size int64
	// build is the blob's number among those of the batcher.
	build uint64
	// unknown: the outcome of the append is unknown, so the blob may have pointers.
	unknown bool
	// stale: there is no blob, or the footer of the blob does not match the part as it would be appended now.
	stale bool
	// refusals counts the definite failures of appends that did not concern single logs.
	refusals int
	// closedSince is the time of the first append that found the engine closed; zero if none did. closings counts such appends.
	closedSince time.Time
	closings    int
	// stalls counts the times that the part has waited for the stall period.
	stalls int
	// tried: the part has tried to put its blob ahead of its turn.
	tried bool

	// attached: the part keeps its flush in the count of flushes in flight. Guarded by Batcher.mu.
	attached bool
}

// blockShare is a part's payloads in a block.
type blockShare struct {
	block    *block
	payloads []*payload
}

func newFlushPart(f *flush, batches []*logBatch, now time.Time) *flushPart {
	p := &flushPart{Part: logqueue.NewPart(f.ticket, now), flush: f, batches: batches, entries: entries(batches), stale: true}
	for _, g := range batches {
		g.part = p
	}
	return p
}

// entries returns the queue entries of batches.
func entries(batches []*logBatch) []*logqueue.Entry {
	list := make([]*logqueue.Entry, len(batches))
	for i, g := range batches {
		list[i] = &g.entry
	}
	return list
}

// batchesIn returns the batches whose entry is in one of the states.
func (p *flushPart) batchesIn(states ...logqueue.State) (found []*logBatch) {
	for _, g := range p.batches {
		if slices.Contains(states, g.entry.State) {
			found = append(found, g)
		}
	}
	return found
}

// loadBlocks assigns all blocks of the flush to the part.
func (p *flushPart) loadBlocks(f *flush) {
	p.shares = make([]blockShare, len(f.blocks))
	for i, b := range f.blocks {
		b.parts.Store(1)
		p.shares[i] = blockShare{block: b, payloads: b.payloads}
	}
	for _, g := range p.batches {
		for _, pl := range g.payloads {
			pl.rebuildRanges()
		}
	}
}

// failPayload fails the frames of a payload.
func (p *flushPart) failPayload(pl *payload, fault *scribev1.ErrorInfo) {
	if pl.fault != nil || len(pl.ranges) == 0 {
		return
	}
	pl.fault = fault
	pl.ranges = nil
	// The blob must not describe what will not be appended.
	p.stale = true
	for i := range pl.spans {
		pl.spans[i].breakChain()
	}
}

// failBatch fails the remaining payloads of a batch.
func (p *flushPart) failBatch(g *logBatch, fault *scribev1.ErrorInfo) {
	for _, pl := range g.payloads {
		p.failPayload(pl, fault)
	}
}

// failAll fails all remaining payloads of the part.
func (p *flushPart) failAll(fault *scribev1.ErrorInfo) {
	for _, g := range p.batches {
		p.failBatch(g, fault)
	}
}

// pointerCount returns the number of pointers that the batch appends.
func (g *logBatch) pointerCount() int {
	n := 0
	for _, pl := range g.payloads {
		n += len(pl.ranges)
	}
	return n
}

// isLive reports whether the batch still has pointers to append.
func (g *logBatch) isLive() bool { return g.pointerCount() > 0 }

// liveBatches returns the batches that still have pointers to append.
func (p *flushPart) liveBatches() []*logBatch {
	live := make([]*logBatch, 0, len(p.batches))
	for _, g := range p.batches {
		if g.isLive() {
			live = append(live, g)
		}
	}
	return live
}

// isEmpty reports whether no pointers are left to append.
func (p *flushPart) isEmpty() bool { return !slices.ContainsFunc(p.batches, (*logBatch).isLive) }

// assignPositions sets the epoch and LSN of every pointer range, counting from those of its batch. It marks the part as stale if
// the blob names other positions.
func (p *flushPart) assignPositions() {
	for _, g := range p.batches {
		lsn := g.entry.LSN
		if g.numbered != g.entry.Shifts {
			g.numbered = g.entry.Shifts
			p.stale = p.stale || g.isLive()
		}
		for e := range g.allRanges() {
			if e.epoch != g.entry.Epoch || e.lsn != lsn {
				e.epoch, e.lsn = g.entry.Epoch, lsn
				p.stale = true
			}
			lsn++
		}
	}
}

// writeFlush makes a flush durable and answers its writers.
func (b *Batcher) writeFlush(f *flush) {
	p := newFlushPart(f, f.batches, b.now())
	b.mu.Lock()
	p.attached = true
	b.mu.Unlock()
	b.metrics.countFlush(f)
	if f.afterClaim != nil {
		<-f.afterClaim
	}
	for _, g := range p.batches {
		g.entry = logqueue.Entry{Shard: g.shard, OneLog: g.bound, Pointers: len(g.payloads)}
	}
	b.queues.Claim(&p.Part, p.entries)
	close(f.claimed)
	b.packSmall(f)
	p.loadBlocks(f)
	b.openWhileCompressing(b.ctx, p, f.compressed)
	b.writePart(b.ctx, p)
}

// packSmall packs a flush's small payloads into blocks, and queues these for compression.
func (b *Batcher) packSmall(f *flush) {
	blocks := packBlocks(f.small, b.cfg.BlockBytes)
	for _, blk := range blocks {
		blk.flush, blk.urgency = f, f.urgency()
	}
	f.blocks, f.small = append(f.blocks, blocks...), nil
	b.update(func(time.Time) { b.mu.acc.blocksPacked(f, len(blocks)) })
	b.compressor.enqueue(blocks)
}

// partStep is the next step of a part.
type partStep uint8

const (
	stepWait   partStep = iota // until something changes
	stepGiveUp                 // fail the batches of logs whose retry limits are reached
	stepMove                   // move batches to the logs of the current writer slot
	stepCommit                 // the part is at the head of all its queues
	stepPut                    // put the blob ahead of its turn, at predicted positions
	stepDivide                 // divide off the batches whose logs are blocked
)

func (s partStep) String() string {
	return [...]string{"wait", "give up logs", "move to the writer slot", "commit", "put ahead", "divide"}[s]
}

// nextStep decides the next step of a part from its queue status. For stepWait, the time returned is the latest end of the wait.
func (p *flushPart) nextStep(st *logqueue.Status, now time.Time, stallAfter time.Duration) (partStep, time.Time) {
	stall := p.Since.Add(time.Duration(p.stalls+1) * stallAfter)
	switch {
	case st.Counts[logqueue.Failed] > 0:
		return stepGiveUp, now
	case st.Counts[logqueue.WrongSlot] > 0:
		return stepMove, now
	case st.AtHead:
		return stepCommit, now
	case st.Positioned && p.id == (pointer.BlobID{}) && !p.tried:
		p.tried = true
		return stepPut, now
	case st.Unopenable && st.Counts[logqueue.Ready] > 0:
		return stepDivide, now // no blob was put, so dividing costs little
	case !now.Before(stall):
		p.stalls++
		return stepDivide, now
	case !st.Again.IsZero() && st.Again.Before(stall):
		return stepWait, st.Again
	default:
		return stepWait, stall
	}
}

// writePart runs the steps of a part until it is committed or empty, and answers its writers.
func (b *Batcher) writePart(ctx context.Context, p *flushPart) {
	committed := false
	for !committed && !p.isEmpty() {
		now, slot := b.now(), b.deps.Slot()
		st := b.queues.Inspect(&p.Part, p.entries, slot, now, true)
		b.openLogs(ctx, st.Open)
		if ctx.Err() != nil {
			p.failAll(b.storageErrorInfo(ctx, context.Cause(ctx)))
			break
		}
		switch step, until := p.nextStep(&st, now, b.stallAfter()); step {
		case stepWait:
			b.waitForChange(ctx, p, until, nil)
		case stepGiveUp:
			b.giveUpLogs(ctx, p)
		case stepMove:
			b.moveToSlot(ctx, p, slot)
		case stepCommit:
			committed = b.commitPart(ctx, p)
		case stepPut:
			// A recovery may take a last blob for committed, so it has nothing that can't be any more.
			if p.dropChained(b.cfg.RetryMax); p.isEmpty() {
				continue
			}
			p.assignPositions()
			b.putBlob(ctx, p)
		case stepDivide:
			b.divideStalled(ctx, p, &st)
		}
	}
	b.finishPart(p, committed)
}

// openWhileCompressing opens the part's logs while its blocks are compressed.
func (b *Batcher) openWhileCompressing(ctx context.Context, p *flushPart, compressed <-chan struct{}) {
	for done := false; !done; {
		st := b.queues.Inspect(&p.Part, p.entries, b.deps.Slot(), b.now(), false)
		b.openLogs(ctx, st.Open)
		done = b.waitForChange(ctx, p, st.Again, compressed)
	}
	p.Since = b.now()
	b.metrics.observeStage(stageCompress, p.Since.Sub(p.flush.cutAt))
}

// waitForChange waits for a wake-up of the part, for the channel to be closed, or until at unless that is zero. It reports
// whether the channel was closed.
func (b *Batcher) waitForChange(ctx context.Context, p *flushPart, at time.Time, closed <-chan struct{}) bool {
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
		end = nil // compression ends soon
	}
	select {
	case <-closed:
		return true
	case <-p.Wake:
	case <-after:
	case <-end:
	}
	return false
}

// stallAfter returns how long a part waits before its blocked batches are divided off. It is longer if flushes are slow, so that
// a slow store does not get more blobs than a fast one.
func (b *Batcher) stallAfter() time.Duration {
	return max(b.cfg.StallAfter, 2*time.Duration(b.flushLatency.Load()))
}

// divideStalled divides a part that has waited too long, so that its ready batches can commit. New frames of the blocked shards
// accumulate until their queues advance. The blocked batches continue to wait; they do not count as in flight if only their own
// logs are in trouble.
func (b *Batcher) divideStalled(ctx context.Context, p *flushPart, st *logqueue.Status) {
	late := p.batchesIn(logqueue.Waiting, logqueue.Closed)
	shards := b.queues.MarkStalled(entries(late))
	rest := p
	if st.Counts[logqueue.Ready] > 0 {
		rest = b.dividePart(p, late)
	}
	b.update(func(now time.Time) {
		for _, s := range shards {
			b.mu.acc.stallShard(s)
		}
		if st.Independent {
			b.mu.acc.detachPart(now, rest)
		}
	})
	if rest != p {
		b.startPart(ctx, rest)
	}
}

// startPart starts writing a part that was divided off.
func (b *Batcher) startPart(ctx context.Context, p *flushPart) {
	b.tasks.Go(func() { b.writePart(ctx, p) })
}

// dividePart moves batches of a part to a new part. The caller starts or finishes the new part.
func (b *Batcher) dividePart(p *flushPart, batches []*logBatch) *flushPart {
	rest := newFlushPart(p.flush, batches, b.now())
	rest.refusals = p.refusals
	b.queues.Reassign(&p.Part, &rest.Part, rest.entries)
	moved := func(g *logBatch) bool { return g.part == rest }
	p.batches = slices.DeleteFunc(p.batches, moved)
	p.entries = entries(p.batches)
	old := p.shares
	p.shares, p.stale = nil, true
	for _, c := range old {
		var stay, leave []*payload
		for _, pl := range c.payloads {
			if moved(pl.batch) {
				leave = append(leave, pl)
			} else {
				stay = append(stay, pl)
			}
		}
		if len(stay) > 0 && len(leave) > 0 {
			c.block.parts.Add(1)
		}
		if len(stay) > 0 {
			p.shares = append(p.shares, blockShare{c.block, stay})
		}
		if len(leave) > 0 {
			rest.shares = append(rest.shares, blockShare{c.block, leave})
		}
	}
	b.metrics.divided.Inc()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.acc.partDivided(p, rest)
	return rest
}

// failBatches fails batches of a part, each with its error. The rest of the part is not affected.
func (b *Batcher) failBatches(p *flushPart, groups []*logBatch, faultOf func(*logBatch) *scribev1.ErrorInfo) {
	failing := p
	if len(groups) < len(p.batches) {
		failing = b.dividePart(p, groups)
	}
	for _, g := range groups {
		failing.failBatch(g, faultOf(g))
	}
	if failing != p {
		b.finishPart(failing, false)
	}
}

// giveUpLogs fails the batches of logs whose retry limits are reached.
func (b *Batcher) giveUpLogs(ctx context.Context, p *flushPart) {
	failed := p.batchesIn(logqueue.Failed)
	b.deps.Logger.WarnContext(ctx, "giving up logs", slog.Int("logs", len(failed)), slog.Any("first", failed[0].shard), slog.Any("error", failed[0].entry.Err))
	b.failBatches(p, failed, func(g *logBatch) *scribev1.ErrorInfo {
		return b.storageErrorInfo(ctx, fmt.Errorf("shard %v cannot be written to: %w", g.shard, g.entry.Err))
	})
}

// moveToSlot moves batches to the logs of the current writer slot. The former slot belongs to another writer.
func (b *Batcher) moveToSlot(ctx context.Context, p *flushPart, slot uint16) {
	batches := p.batchesIn(logqueue.WrongSlot)
	if slot == 0 {
		fault := &scribev1.ErrorInfo{
			Reason: scribev1.Reason_REASON_FENCED, Message: "the batcher has lost its writer slot: send to another one",
			RetryAfter: durationpb.New(b.cfg.RetryBase),
		}
		b.failBatches(p, batches, func(*logBatch) *scribev1.ErrorInfo { return fault })
		return
	}
	// Logs do not wait for each other: what follows frames that went to the former log cannot be stored after them.
	fault := &scribev1.ErrorInfo{
		Reason: scribev1.Reason_REASON_NO_BACKEND, Message: "the batcher's writer slot has changed: send it again after the frames before it",
		RetryAfter: durationpb.New(b.cfg.RetryBase),
	}
	for _, g := range batches {
		for _, pl := range g.payloads {
			if slices.ContainsFunc(pl.spans, func(s frameSpan) bool { return s.after != nil }) {
				p.failPayload(pl, fault)
			}
		}
	}
	moving := p
	if len(batches) < len(p.batches) {
		moving = b.dividePart(p, batches)
	}
	moving.stale = true
	resumed := b.queues.Move(moving.entries, slot)
	for _, g := range moving.batches {
		g.shard = g.entry.Shard
	}
	b.update(func(now time.Time) { b.mu.acc.resumeShards(now, resumed) })
	if moving != p {
		b.startPart(ctx, moving)
	}
}

// finishPart ends a part: it advances the queues of its logs, frees its memory, and answers its writers.
func (b *Batcher) finishPart(p *flushPart, committed bool) {
	for _, g := range p.batches {
		if g.entry.Pointers = g.pointerCount(); committed && g.exactlyOnce {
			b.dedup.addBatch(g)
		}
	}
	resumed := b.queues.Finish(p.entries, committed, b.now())
	switch {
	case committed:
		b.history.endBuild(p.build, buildCommitted)
		p.correctConflicts()
	case p.unknown:
		b.history.endBuild(p.build, buildUnknown)
	default:
		b.orphanBlob(p)
	}
	freed := b.releaseBlocks(p)
	outcome := setResults(p)
	b.metrics.observeStage(stageTotal, b.now().Sub(p.flush.oldest))
	b.update(func(end time.Time) {
		b.mu.counts.addOutcome(outcome)
		b.mu.acc.partFinished(end, p, freed, end.Sub(p.flush.cutAt))
		b.mu.acc.resumeShards(end, resumed)
		b.flushLatency.Store(int64(b.mu.acc.latency))
	})
	// Wake the writers last, when the memory is free and the counters are up to date.
	wakeWriters(p)
}

// releaseBlocks releases the blocks that no other part uses, and returns their bytes.
func (b *Batcher) releaseBlocks(p *flushPart) (freed int64) {
	for _, c := range p.shares {
		if c.block.parts.Add(-1) > 0 {
			continue
		}
		freed += int64(len(c.block.stored.B))
		b.buffers.Put(c.block.stored)
		c.block.stored = nil
	}
	return freed
}
