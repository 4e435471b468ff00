package readproxy

import (
	"context"
	"errors"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// blockFetch is a running fetch of a block. All requests for the block share it. It belongs to no request, so it does not end
// with one.
type blockFetch struct {
	key  blockKey
	p    pointer.Pointer
	rule Rule
	// category is that of the first request, for peers that are asked for the block.
	category string
	// peer: a read proxy of another region asks for the block, so no peer is asked.
	peer bool
	need int64 // bytes of Config.FetchBytes
	// rereading: the bytes from the store were damaged, and the block is read again. Only the goroutine that reads the block uses
	// it.
	rereading bool

	done chan struct{}
	// block and err are set when done is closed.
	block *checkedBlock
	err   error
	// shared: other requests than the first wait for the fetch. Guarded by Server.fetches.
	shared bool
	// pushed is closed when a batcher has pushed the block, if the fetch waits for that; else it is nil. While awaitsPush is set, a
	// push may set block; Server.fetches guards both.
	pushed     chan struct{}
	awaitsPush bool
}

// loadBlocks loads the blocks of an answer from memory or by fetches, which concurrent requests share. It returns when each job
// has its block or an error with a reason. It fails only if ctx ends; the fetches then continue for other requests.
func (s *Server) loadBlocks(ctx context.Context, a *fetchAnswer) error {
	joined, own := s.joinFetches(a)
	for i, f := range joined {
		if f == nil {
			continue
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		j := &a.jobs[i]
		if j.block, j.err = f.block, f.err; j.err == nil && !own[i] {
			s.metrics.shared.Inc()
			s.metrics.saved.WithLabelValues(tierFlight).Add(float64(j.p.BlockLen))
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// joinFetches finds the blocks of an answer that are in memory, and joins or starts fetches for the others. Its own fetches are
// running when it returns, and also if it panics: other requests may wait for them already.
func (s *Server) joinFetches(a *fetchAnswer) (joined []*blockFetch, own []bool) {
	joined, own = make([]*blockFetch, len(a.jobs)), make([]bool, len(a.jobs))
	var first []*blockFetch
	defer func() {
		if len(first) > 0 {
			s.startFetches(first)
		}
	}()
	for i := range a.jobs {
		j := &a.jobs[i]
		if j.idle || j.block != nil || j.err != nil {
			continue
		}
		if j.block = s.cachedBlock(a, j); j.block != nil {
			continue
		}
		s.metrics.misses.WithLabelValues(tierMemory).Inc()
		f, mine, err := s.joinFetch(a, j)
		if err != nil {
			j.err = err
			continue
		}
		joined[i], own[i] = f, mine
		if mine {
			first = append(first, f)
		}
	}
	return joined, own
}

// startFetches loads each block from the nearest tier that has it. Each fetch ends with its block or an error. Close waits for it.
func (s *Server) startFetches(fs []*blockFetch) {
	var awaiting, others []*blockFetch
	for _, f := range fs {
		if f.pushed != nil {
			awaiting = append(awaiting, f)
		} else {
			others = append(others, f)
		}
	}
	load := func(fs []*blockFetch) { s.reads.addBlocks(s.fromPeers(s.fromShared(fs)), false) }
	if len(others) > 0 {
		go load(others)
	}
	if len(awaiting) > 0 {
		go func() {
			if awaiting[0].rule.Memory == KeepNever { // memcached has the blocks that were pushed before
				awaiting = s.fromShared(awaiting)
			}
			if rest := s.fromPushes(awaiting); len(rest) > 0 {
				load(rest)
			}
		}()
	}
}

// cachedBlock returns a job's block from memory after verifying it again: a damaged block must be neither sent nor kept.
func (s *Server) cachedBlock(a *fetchAnswer, j *blockJob) *checkedBlock {
	b, again := s.cache.getBlock(j.key)
	if b == nil {
		return nil
	}
	if !b.isIntact(&j.key, j.begin, j.end) {
		s.cache.dropDamaged(j.key, b)
		s.metrics.damaged.WithLabelValues(tierMemory).Inc()
		s.log.Error("block damaged in memory: fetching it again", "blob", j.p.Key(), "block", j.p.BlockOffset)
		return nil
	}
	s.metrics.hits.WithLabelValues(tierMemory).Inc()
	s.metrics.saved.WithLabelValues(tierMemory).Add(float64(j.p.BlockLen))
	if again && !b.shared && !j.p.Codec.IsEncrypted() && (!j.key.raw || j.p.Codec == pointer.CodecNone) {
		s.fills.blockReused(&a.rule, j.p, b.data)
	}
	return b
}

// joinFetch returns the fetch of a job's block. If mine is set, the caller has to run it.
func (s *Server) joinFetch(a *fetchAnswer, j *blockJob) (f *blockFetch, mine bool, err error) {
	s.fetches.Lock()
	defer s.fetches.Unlock()
	if f := s.fetches.running[j.key]; f != nil {
		f.shared = true
		return f, false, nil
	}
	f = &blockFetch{key: j.key, p: *j.p, rule: a.rule, category: a.category, peer: a.peer, done: make(chan struct{})}
	// A fetch may have ended after the caller looked: it puts its block into the cache before it leaves the map.
	if b, _ := s.cache.getBlock(j.key); b != nil {
		f.block = b
		close(f.done)
		return f, false, nil
	}
	f.need = s.fetchCost(j)
	if !s.calls.Enter() {
		return nil, false, s.shutdownError()
	}
	if !s.fetchBytes.TryAcquire(f.need) {
		s.calls.Leave()
		return nil, false, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryHint(),
			"the blocks being fetched use all %d bytes for them: retry", s.cfg.FetchBytes)
	}
	s.metrics.fetching.Inc()
	s.markAwaiting(f)
	s.fetches.running[j.key] = f
	return f, true, nil
}

// fetchCost returns the memory of a block while it is fetched: the stored block, the unneeded bytes read with it and its copy
// from a shared read, and the decompressed block.
func (s *Server) fetchCost(j *blockJob) int64 {
	n := int64(j.p.BlockLen)
	if n < s.cfg.CoalesceBytes {
		n += n + n/wasteShare
	}
	if j.key.raw && j.p.Codec != pointer.CodecNone {
		n += int64(j.p.BlockRawLen)
	}
	if j.p.Codec.IsEncrypted() {
		n += int64(j.p.BlockLen)
	}
	return min(n, s.cfg.FetchBytes)
}

// endFetch ends a fetch with a block or an error.
func (s *Server) endFetch(f *blockFetch, b *checkedBlock, err error) (shared bool) {
	if err != nil {
		err = s.withReason(&f.p, err)
	}
	s.fetches.Lock()
	if err == nil && f.rule.Memory != KeepNever {
		s.cache.addBlock(f.key, b, f.shared || s.isYoung(&f.p))
	}
	delete(s.fetches.running, f.key)
	shared = f.shared
	s.fetches.Unlock()
	f.block, f.err = b, err
	s.metrics.fetching.Dec()
	s.fetchBytes.Release(f.need)
	close(f.done) // after what the fetch took is given back: a caller that has its block finds nothing charged
	s.calls.Leave()
	return shared
}

// isYoung reports whether a payload is assumed to have several readers.
func (s *Server) isYoung(p *pointer.Pointer) bool {
	return blobAge(p, s.deps.Now()) <= s.cfg.TailAge
}

// endWithBlock ends a fetch with verified stored bytes from a tier. The block owns them afterwards.
func (s *Server) endWithBlock(f *blockFetch, stored []byte, tier string) {
	b, err := s.newBlock(&f.p, stored, f.key.raw)
	switch {
	case errors.Is(err, record.ErrVersion):
		err = rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", describePayload(&f.p), err)
	case rpc.ReasonOf(err) != scribev1.Reason_REASON_UNSPECIFIED: // it can't be decrypted
	case err != nil:
		err = damagedError(&f.p, err)
	default:
		b.shared = tier == tierShared
	}
	if s.endFetch(f, b, err) && err == nil && !b.shared {
		s.fills.blockReused(&f.rule, &f.p, stored)
	}
}
