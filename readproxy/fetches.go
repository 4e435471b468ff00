package readproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// blockFetch is a block on its way into this process. However many ask for the block, there is one. It belongs to no request: askers
// come and go.
type blockFetch struct {
	key  blockKey
	p    pointer.Pointer
	rule Rule
	// category is the first asker's, for whoever is asked for the block.
	category string
	// peer: a read proxy of another region asks, so none is asked.
	peer bool
	need int64 // bytes of Config.FetchBytes
	// rereading: what came from the store was damaged, and it is read once more. Only the one who reads for it sees it.
	rereading bool

	done chan struct{}
	// block and err are set when done is closed.
	block *checkedBlock
	err   error
	// shared: others than the first wait for it. Guarded by flights.mu.
	shared bool
}

// fetchTable has the running fetches.
type fetchTable struct {
	mu struct {
		sync.Mutex
		running map[blockKey]*blockFetch
	}
}

// loadBlocks gets the blocks of an answer: from memory, or fetched, together with all others that ask for them now. It returns when each job
// has its block or an error with a reason, or when ctx ends; fetches go on for the others then.
func (s *Server) loadBlocks(ctx context.Context, a *fetchAnswer) {
	joined, own := s.joinFetches(a)
	for i, f := range joined {
		if f == nil {
			continue
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return
		}
		j := &a.jobs[i]
		if j.block, j.err = f.block, f.err; j.err == nil && !own[i] {
			s.metrics.shared.Inc()
			s.metrics.saved.WithLabelValues(tierFlight).Add(float64(j.p.BlockLen))
		}
	}
}

// joinFetches finds the blocks of an answer that are in memory, and joins the flights of the others, with those that are its own. These are under
// way when it returns, and also when it panics: others may wait for them already.
func (s *Server) joinFetches(a *fetchAnswer) (joined []*blockFetch, own []bool) {
	joined, own = make([]*blockFetch, len(a.jobs)), make([]bool, len(a.jobs))
	var first []*blockFetch
	defer func() {
		if len(first) > 0 {
			go s.runFetches(first) // Close waits for each flight
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

// cachedBlock returns a job's block out of memory, where it is looked at again: damage there must not go out, nor stay.
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
	if again && !b.shared && (!j.key.raw || j.p.Codec == pointer.CodecNone) {
		s.fills.blockReused(&a.rule, j.p, b.data)
	}
	return b
}

// joinFetch returns the flight of a job's block; mine says that the caller has to let it fly.
func (s *Server) joinFetch(a *fetchAnswer, j *blockJob) (f *blockFetch, mine bool, err error) {
	s.fetches.mu.Lock()
	defer s.fetches.mu.Unlock()
	if f := s.fetches.mu.running[j.key]; f != nil {
		f.shared = true
		return f, false, nil
	}
	f = &blockFetch{key: j.key, p: *j.p, rule: a.rule, category: a.category, peer: a.peer, done: make(chan struct{})}
	// One may have landed between the caller's look and now: it left its block in the cache before it left the list.
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
	s.fetches.mu.running[j.key] = f
	return f, true, nil
}

// fetchCost is what a block takes while it is fetched: as stored, what is read with it in vain and its copy out of a read that it
// shares, decompressed.
func (s *Server) fetchCost(j *blockJob) int64 {
	n := int64(j.p.BlockLen)
	if n < s.cfg.CoalesceBytes {
		n += n + n/wasteShare
	}
	if j.key.raw && j.p.Codec != pointer.CodecNone {
		n += int64(j.p.BlockRawLen)
	}
	return min(n, s.cfg.FetchBytes)
}

// runFetches gets blocks from the nearest tier that has them. It ends every fetch with a block or an error.
func (s *Server) runFetches(fs []*blockFetch) {
	fs = s.fromShared(fs)
	fs = s.fromPeers(fs)
	s.reads.addBlocks(fs)
}

// endFetch ends a flight with a block or an error.
func (s *Server) endFetch(f *blockFetch, b *checkedBlock, err error) (shared bool) {
	if err != nil {
		err = s.withReason(&f.p, err)
	}
	s.fetches.mu.Lock()
	if err == nil && f.rule.Memory != KeepNever {
		young := time.Now().UnixMicro()-f.p.Blob.Time() <= s.cfg.TailAge.Microseconds()
		s.cache.addBlock(f.key, b, f.shared || young)
	}
	delete(s.fetches.mu.running, f.key)
	shared = f.shared
	s.fetches.mu.Unlock()
	f.block, f.err = b, err
	close(f.done)
	s.metrics.fetching.Dec()
	s.fetchBytes.Release(f.need)
	s.calls.Leave()
	return shared
}

// endWithBlock ends a flight with stored bytes that are sound, from a tier; they are the block's afterwards.
func (s *Server) endWithBlock(f *blockFetch, stored []byte, tier string) {
	b, err := newBlock(&f.p, stored, f.key.raw)
	switch {
	case errors.Is(err, record.ErrVersion):
		err = rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", describePayload(&f.p), err)
	case err != nil:
		err = damagedError(&f.p, err)
	default:
		b.shared = tier == tierShared
	}
	if s.endFetch(f, b, err) && err == nil && !b.shared {
		s.fills.blockReused(&f.rule, &f.p, stored)
	}
}
