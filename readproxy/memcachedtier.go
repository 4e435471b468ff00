package readproxy

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/pointer"
	"scribe/readproxy/memcached"
)

// sharedLookups bounds the concurrent memcached lookups of a request.
const sharedLookups = 8

// fromShared ends the fetches whose blocks are in memcached, and returns the others. It takes no longer than the client's
// timeout, and no time while the servers are known to be unavailable.
func (s *Server) fromShared(fs []*blockFetch) []*blockFetch {
	if s.shared == nil {
		return fs
	}
	now := s.deps.Now()
	landed := make([]bool, len(fs))
	var g errgroup.Group
	g.SetLimit(sharedLookups)
	for i, f := range fs {
		if f.rule.Shared == KeepNever || !f.rule.isRecent(&f.p, now) || int(f.p.BlockLen) > s.cfg.Memcached.ValueBytes {
			continue
		}
		g.Go(func() error {
			if stored := s.sharedGet(f); stored != nil {
				landed[i] = true
				s.endWithBlock(f, stored, tierShared)
			} else {
				s.metrics.misses.WithLabelValues(tierShared).Inc()
			}
			return nil
		})
	}
	_ = g.Wait() // each records its own result
	rest := fs[:0:0]
	for i, f := range fs {
		if !landed[i] {
			rest = append(rest, f)
		}
	}
	return rest
}

// sharedGet returns a block from memcached; nil if it is missing or damaged.
func (s *Server) sharedGet(f *blockFetch) []byte {
	stored := make([]byte, f.p.BlockLen)
	key := f.key.sharedKey()
	found, err := s.shared.Get(s.running, key, stored)
	if err != nil {
		s.metrics.sharedFailures.WithLabelValues("get", sharedFailure(err)).Inc()
		return nil
	}
	if !found {
		return nil
	}
	if err := checkStored(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierShared).Inc()
		s.log.Error("block from memcached does not match its checksum: fetching it from the next tier", "blob", f.p.Key(), "block", f.p.BlockOffset, "error", err)
		if err := s.shared.Delete(s.running, key, len(stored)); err != nil {
			s.metrics.sharedFailures.WithLabelValues("delete", sharedFailure(err)).Inc()
		}
		return nil
	}
	s.metrics.hits.WithLabelValues(tierShared).Inc()
	s.metrics.saved.WithLabelValues(tierShared).Add(float64(len(stored)))
	return stored
}

// sharedFailure returns the metric label of a memcached error.
func sharedFailure(err error) string {
	switch {
	case errors.Is(err, memcached.ErrUnavailable):
		return "away"
	case errors.Is(err, memcached.ErrProtocol):
		return "protocol"
	case errors.Is(err, memcached.ErrTooLarge):
		return "too_large"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled), errors.Is(err, memcached.ErrClosed):
		return "closed"
	default:
		return "connection"
	}
}

// memcachedFiller writes blocks to memcached in the background. Config.FillBytes bounds the queued blocks.
type memcachedFiller struct {
	s *Server
	writeBehind[memcachedFill]
}

type memcachedFill struct {
	key  string
	data []byte
	ttl  time.Duration
	// headKey, if not empty, is the key of another value, which is written after the first.
	headKey string
	head    []byte
}

// fillWriters bounds the concurrent writes to memcached.
const fillWriters = 4

func newFills(s *Server) *memcachedFiller {
	w := &memcachedFiller{s: s}
	w.writeBehind = writeBehind[memcachedFill]{
		write: w.writeFill, sizeOf: func(f memcachedFill) int64 { return int64(len(f.data)) }, limit: s.cfg.FillBytes, writers: fillWriters, perBatch: 1,
	}
	return w
}

// blockFetched is called for every block from a store or a peer. The bytes may be part of a larger read.
func (w *memcachedFiller) blockFetched(r *Rule, p *pointer.Pointer, stored []byte) {
	if r.Shared == KeepAlways {
		w.addBlock(r, p, stored)
	}
}

// blockReused is called for every block that is requested again.
func (w *memcachedFiller) blockReused(r *Rule, p *pointer.Pointer, stored []byte) {
	if r.Shared == KeepReused {
		w.addBlock(r, p, stored)
	}
}

func (w *memcachedFiller) addBlock(r *Rule, p *pointer.Pointer, stored []byte) {
	s := w.s
	now := s.deps.Now()
	if s.shared == nil || !r.isRecent(p, now) || len(stored) > s.cfg.Memcached.ValueBytes {
		return
	}
	key := blockKeyOf(p, false)
	w.addFill(memcachedFill{key: key.sharedKey(), data: stored, ttl: r.timeLeft(p, now)})
}

// addFill queues a value, or drops it.
func (w *memcachedFiller) addFill(f memcachedFill) {
	if !w.addItem(f) {
		w.s.metrics.fills.WithLabelValues("dropped").Inc()
	}
}

// writeFill writes a batch of one block.
func (w *memcachedFiller) writeFill(batch []memcachedFill) {
	f := batch[0]
	err := w.s.shared.Set(w.s.running, f.key, f.data, f.ttl)
	if err == nil && f.headKey != "" {
		err = w.s.shared.Set(w.s.running, f.headKey, f.head, f.ttl)
	}
	if err != nil {
		w.s.metrics.fills.WithLabelValues("failed").Inc()
		w.s.metrics.sharedFailures.WithLabelValues("set", sharedFailure(err)).Inc()
		return
	}
	w.s.metrics.fills.WithLabelValues("stored").Inc()
	w.s.metrics.filledBytes.Add(float64(len(f.data)))
}
