package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/role/admission"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
)

// storeReader executes the read plan, with at most Config.Fetches concurrent reads and Config.ReadsPerSecond reads a second.
// Blocks that can't be read yet wait in the plan, within Config.FetchBytes.
type storeReader struct {
	s      *Server
	bucket *admission.TokenBucket
	mu     struct {
		sync.Mutex
		plan    *readPlan
		running int
		// timer fires when the bucket has a token; nil if no read waits for one.
		timer *time.Timer
	}
}

func newReads(s *Server) *storeReader {
	r := &storeReader{s: s, bucket: admission.NewBucket(s.cfg.ReadsPerSecond, float64(s.cfg.ReadBurst))}
	r.mu.plan = newPlan(s.cfg.CoalesceGap, s.cfg.CoalesceBytes)
	return r
}

// addBlocks adds blocks to the plan. With alone, they are not read together with others.
func (r *storeReader) addBlocks(fs []*blockFetch, alone bool) {
	t := time.Now()
	r.mu.Lock()
	for _, f := range fs {
		r.mu.plan.addBlock(&wantedBlock{fetch: f, off: f.p.BlockOffset, len: uint64(f.p.BlockLen), since: t, alone: alone})
	}
	r.startReadsAndUnlock()
}

// startReadsAndUnlock starts the reads that may run now. The caller holds the mutex; it is released on return.
func (r *storeReader) startReadsAndUnlock() {
	late := r.startReads()
	r.mu.Unlock()
	for _, f := range late {
		r.s.endFetch(f, nil, fmt.Errorf("wait for a request to the store: %w", context.DeadlineExceeded))
	}
}

// startReads starts reads. It returns the fetches that waited too long, and all of them if the server is closed. The mutex is
// held.
func (r *storeReader) startReads() (late []*blockFetch) {
	for !r.mu.plan.isEmpty() {
		if r.s.running.Err() != nil {
			for _, w := range r.mu.plan.takeSpan().wants {
				late = append(late, w.fetch)
			}
			continue
		}
		if r.mu.running >= r.s.cfg.Fetches || r.mu.timer != nil {
			break
		}
		t := time.Now()
		if after, ok := r.bucket.TakeOrWait(t); !ok {
			r.s.metrics.paced.Inc()
			r.mu.timer = time.AfterFunc(after, func() {
				r.mu.Lock()
				r.mu.timer = nil
				r.startReadsAndUnlock()
			})
			break
		}
		sp := r.mu.plan.takeSpan()
		sp.wants = slices.DeleteFunc(sp.wants, func(w *wantedBlock) bool {
			tooLate := t.Sub(w.since) > r.s.cfg.FetchTimeout
			if tooLate {
				late = append(late, w.fetch)
			}
			return tooLate
		})
		if len(sp.wants) > 0 {
			r.mu.running++
			go r.runRead(sp)
		}
	}
	return late
}

// runRead reads a span, ends its fetches, and starts the next reads.
func (r *storeReader) runRead(sp readSpan) {
	buf, err := r.readSpan(sp)
	r.mu.Lock()
	r.mu.running--
	alone := errors.Is(err, blob.ErrRange) && len(sp.wants) > 1
	if alone {
		// One of the pointers has a wrong range; the other blocks are read alone, so that they do not fail with it.
		for _, w := range sp.wants {
			r.mu.plan.addBlock(&wantedBlock{fetch: w.fetch, off: w.off, len: w.len, since: w.since, alone: true})
		}
	}
	r.startReadsAndUnlock()
	if alone {
		return
	}
	for _, w := range sp.wants {
		if err != nil {
			r.s.endFetch(w.fetch, nil, err)
			continue
		}
		r.s.deliverBlock(w.fetch, buf[w.off-sp.off:w.end()-sp.off:w.end()-sp.off], len(buf))
	}
}

func (r *storeReader) readSpan(sp readSpan) ([]byte, error) {
	s := r.s
	store, err := s.deps.Blobs(s.localName(sp.blob.region))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", errRegion, sp.blob.region, err)
	}
	ctx, cancel := context.WithTimeout(s.running, s.cfg.FetchTimeout)
	defer cancel()
	s.metrics.storeReads.Inc()
	begin := time.Now()
	buf := make([]byte, sp.len)
	err = store.ReadAt(ctx, sp.wants[0].fetch.p.Key(), buf, int64(sp.off)) //nolint:gosec // pointers are checked
	s.metrics.storeSeconds.Observe(time.Since(begin).Seconds())
	if err != nil {
		return nil, err
	}
	s.metrics.storeBytes.Add(float64(len(buf)))
	s.metrics.storeBlocks.Add(float64(len(sp.wants)))
	wasted := len(buf)
	at := sp.off
	for _, w := range sp.wants {
		if end := w.end(); end > at {
			wasted -= int(end - max(at, w.off)) //nolint:gosec // within buf
			at = end
		}
	}
	s.metrics.storeWaste.Add(float64(wasted))
	return buf, nil
}

// deliverBlock ends a fetch with the bytes that a store returned for it, which are part of a read of so many bytes.
func (s *Server) deliverBlock(f *blockFetch, stored []byte, of int) {
	if err := checkStored(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierStore).Inc()
		if !f.rereading {
			// The bytes may have been damaged in transit.
			s.log.Warn("block from the store does not match its checksum: reading it again", "blob", f.p.Key(), "block", f.p.BlockOffset, "error", err)
			f.rereading = true
			s.reads.addBlocks([]*blockFetch{f}, true)
			return
		}
		s.endFetch(f, nil, damagedError(&f.p, err))
		return
	}
	// A cached block must not keep its neighbours' bytes in memory.
	if len(stored) < of && (!f.key.raw || f.p.Codec == pointer.CodecNone || s.shared != nil) {
		stored = bytes.Clone(stored)
	}
	s.fills.blockFetched(&f.rule, &f.p, stored)
	s.endWithBlock(f, stored, tierStore)
}

// stopWaiting ends the fetches that wait.
func (r *storeReader) stopWaiting() {
	r.mu.Lock()
	if r.mu.timer != nil && r.mu.timer.Stop() {
		r.mu.timer = nil
	}
	r.startReadsAndUnlock()
}

// errRegion means that there is no store for a region here.
var errRegion = errors.New("readproxy: no store for the region")

// withReason adds a reason to the error of a fetch.
func (s *Server) withReason(p *pointer.Pointer, err error) error {
	reason := rpc.ReasonOf(err)
	switch {
	case reason == scribev1.Reason_REASON_CORRUPT:
		s.log.Error("block damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return err
	case reason != scribev1.Reason_REASON_UNSPECIFIED && reason != scribev1.Reason_REASON_UNKNOWN_OUTCOME: // which the error of an ended context has
		return err
	case errors.Is(err, blob.ErrRange):
		s.log.Error("block damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return damagedError(p, err)
	case errors.Is(err, blob.ErrNotFound):
		return rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s is not in its store (removed by retention, or lost): %w", describePayload(p), err)
	case s.running.Err() != nil:
		return s.shutdownError()
	case errors.Is(err, context.DeadlineExceeded):
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.retryHint(), "%s was not fetched within %v, retry: %w", describePayload(p), s.cfg.FetchTimeout, err)
	case errors.Is(err, errRegion):
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.retryHint(), "%s cannot be fetched by this read proxy: %w", describePayload(p), err)
	}
	s.log.Warn("block not fetched", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.retryHint(), "%s: the store failed, retry: %w", describePayload(p), err)
}

// describePayload describes the position of a payload, for errors.
func describePayload(p *pointer.Pointer) string {
	text := fmt.Sprintf("blob %s, block at %d, payload at %d", p.Key(), p.BlockOffset, p.Offset)
	if p.Region != "" {
		text += " (region " + p.Region + ")"
	}
	return text
}

func damagedError(p *pointer.Pointer, err error) error {
	return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s is damaged: %w", describePayload(p), err)
}
