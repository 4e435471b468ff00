package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/admission"
	"scribe/storage/blob"
)

// reads carries out what the plan says: at most Config.Fetches at a time, and so many a second as the stores are to be asked for. What
// can't be read yet waits in the plan, as much as Config.FetchBytes allows.
type reads struct {
	s      *Server
	bucket *admission.Bucket
	mu     struct {
		sync.Mutex
		plan    *plan
		running int
		// timer waits for the bucket; nil when it need not.
		timer *time.Timer
	}
}

func newReads(s *Server) *reads {
	r := &reads{s: s, bucket: admission.NewBucket(s.cfg.ReadsPerSecond, float64(s.cfg.ReadBurst))}
	r.mu.plan = newPlan(s.cfg.CoalesceGap, s.cfg.CoalesceBytes)
	return r
}

func (r *reads) add(fs []*flight) {
	if len(fs) == 0 {
		return
	}
	t := time.Now()
	r.mu.Lock()
	for _, f := range fs {
		r.mu.plan.add(&want{flight: f, off: f.p.BlockOffset, len: uint64(f.p.BlockLen), since: t})
	}
	late := r.dispatch()
	r.mu.Unlock()
	r.giveUp(late)
}

// addAlone has a block read that is not read together with others.
func (r *reads) addAlone(f *flight) {
	r.mu.Lock()
	r.mu.plan.add(&want{flight: f, off: f.p.BlockOffset, len: uint64(f.p.BlockLen), since: time.Now(), alone: true})
	late := r.dispatch()
	r.mu.Unlock()
	r.giveUp(late)
}

// tick starts what may run now.
func (r *reads) tick() {
	r.mu.Lock()
	late := r.dispatch()
	r.mu.Unlock()
	r.giveUp(late)
}

// dispatch starts reads, and returns the flights that waited for too long, or for a server that is closed. The mutex is held.
func (r *reads) dispatch() (late []*flight) {
	for !r.mu.plan.empty() {
		if r.s.running.Err() != nil {
			late = append(late, flightsOf(r.mu.plan.next())...)
			continue
		}
		if r.mu.running >= r.s.cfg.Fetches || r.mu.timer != nil {
			break
		}
		t := time.Now()
		if after, ok := r.bucket.Next(t); !ok {
			r.s.metrics.paced.Inc()
			r.mu.timer = time.AfterFunc(after, func() {
				r.mu.Lock()
				r.mu.timer = nil
				late := r.dispatch()
				r.mu.Unlock()
				r.giveUp(late)
			})
			break
		}
		sp := r.mu.plan.next()
		keep := sp.wants[:0]
		for _, w := range sp.wants {
			if t.Sub(w.since) > r.s.cfg.FetchTimeout {
				late = append(late, w.flight)
			} else {
				keep = append(keep, w)
			}
		}
		if sp.wants = keep; len(keep) == 0 {
			continue
		}
		r.mu.running++
		go r.read(sp)
	}
	return late
}

func flightsOf(sp span) []*flight {
	fs := make([]*flight, len(sp.wants))
	for i, w := range sp.wants {
		fs[i] = w.flight
	}
	return fs
}

func (r *reads) giveUp(fs []*flight) {
	for _, f := range fs {
		r.s.land(f, nil, fmt.Errorf("waiting for a request to the store: %w", context.DeadlineExceeded))
	}
}

// read reads a span, lands its flights, and starts what comes next.
func (r *reads) read(sp span) {
	buf, err := r.fetch(sp)
	r.mu.Lock()
	r.mu.running--
	alone := errors.Is(err, blob.ErrRange) && len(sp.wants) > 1
	if alone {
		// One of them is wrong about the blob; the others must not pay for it.
		for _, w := range sp.wants {
			r.mu.plan.add(&want{flight: w.flight, off: w.off, len: w.len, since: w.since, alone: true})
		}
	}
	late := r.dispatch()
	r.mu.Unlock()
	r.giveUp(late)
	if alone {
		return
	}
	for _, w := range sp.wants {
		if err != nil {
			r.s.land(w.flight, nil, err)
			continue
		}
		r.s.deliver(w.flight, buf[w.off-sp.off:w.end()-sp.off:w.end()-sp.off], len(buf))
	}
}

func (r *reads) fetch(sp span) ([]byte, error) {
	s := r.s
	store, err := s.deps.Blobs(s.local(sp.blob.region))
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", errRegion, sp.blob.region, err)
	}
	ctx, cancel := context.WithTimeout(s.running, s.cfg.FetchTimeout)
	defer cancel()
	s.metrics.storeReads.Inc()
	begin := time.Now()
	buf := make([]byte, sp.len)
	err = store.ReadAt(ctx, sp.wants[0].flight.p.Key(), buf, int64(sp.off)) //nolint:gosec // pointers are checked
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

// deliver ends a flight with what a store had in its place, part of a read of so many bytes.
func (s *Server) deliver(f *flight, stored []byte, of int) {
	if err := sound(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierStore).Inc()
		if !f.again {
			// It may have come to harm on its way.
			s.log.Warn("a block came damaged from its store; it is read once more", "blob", f.p.Key(), "block", f.p.BlockOffset, "error", err)
			f.again = true
			s.reads.addAlone(f)
			return
		}
		s.land(f, nil, damage(&f.p, err))
		return
	}
	// What is kept must not keep its neighbours' bytes.
	if len(stored) < of && (!f.key.raw || f.p.Codec == pointer.CodecNone || s.shared != nil) {
		stored = bytes.Clone(stored)
	}
	s.fills.fetched(&f.rule, &f.p, stored)
	s.arrive(f, stored, tierStore)
}

// stop gives up what waits.
func (r *reads) stop() {
	r.mu.Lock()
	if r.mu.timer != nil && r.mu.timer.Stop() {
		r.mu.timer = nil
	}
	r.mu.Unlock()
	r.tick()
}

// errRegion is a region that has no store here.
var errRegion = errors.New("readproxy: no store for the region")

// reasoned gives the error of a fetch a reason.
func (s *Server) reasoned(p *pointer.Pointer, err error) error {
	reason := rpc.ReasonOf(err)
	switch {
	case reason == scribev1.Reason_REASON_CORRUPT:
		s.log.Error("a block is damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return err
	case reason != scribev1.Reason_REASON_UNSPECIFIED && reason != scribev1.Reason_REASON_UNKNOWN_OUTCOME: // which an ended context has
		return err
	case errors.Is(err, blob.ErrRange):
		s.log.Error("a block is damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return damage(p, err)
	case errors.Is(err, blob.ErrNotFound):
		return rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s is not in its store: retention removed it, or it was lost: %w", where(p), err)
	case s.running.Err() != nil:
		return s.refusal()
	case errors.Is(err, context.DeadlineExceeded):
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.hint(), "%s was not fetched within %v: try again: %w", where(p), s.cfg.FetchTimeout, err)
	case errors.Is(err, errRegion):
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.hint(), "%s can't be fetched by this server: %w", where(p), err)
	}
	s.log.Warn("a block could not be fetched", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.hint(), "%s: the store failed, try again: %w", where(p), err)
}

// where names where a payload is.
func where(p *pointer.Pointer) string {
	text := fmt.Sprintf("blob %s, block at %d, payload at %d", p.Key(), p.BlockOffset, p.Offset)
	if p.Region != "" {
		text += " (region " + p.Region + ")"
	}
	return text
}

func damage(p *pointer.Pointer, err error) error {
	return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s is damaged: %w", where(p), err)
}
