package readproxy

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/pointer"
	"scribe/readproxy/memcached"
)

// sharedLookups is how many blocks of a request are looked up in memcached at a time.
const sharedLookups = 8

// fromShared lands the flights whose blocks are in memcached, and returns the others. It costs no more than the client's timeout, and
// nothing while the servers are known to be away.
func (s *Server) fromShared(fs []*flight) []*flight {
	if s.shared == nil {
		return fs
	}
	t := time.Now()
	asked := make([]bool, len(fs))
	landed := make([]bool, len(fs))
	var g errgroup.Group
	g.SetLimit(sharedLookups)
	for i, f := range fs {
		if f.rule.Shared == KeepNever || !f.rule.recent(&f.p, t) || int(f.p.BlockLen) > s.cfg.Memcached.ValueBytes {
			continue
		}
		asked[i] = true
		g.Go(func() error {
			if stored := s.sharedGet(f); stored != nil {
				landed[i] = true
				s.arrive(f, stored, tierShared)
			}
			return nil
		})
	}
	_ = g.Wait() // each says what it found
	rest := fs[:0:0]
	for i, f := range fs {
		if asked[i] && !landed[i] {
			s.metrics.misses.WithLabelValues(tierShared).Inc()
		}
		if !landed[i] {
			rest = append(rest, f)
		}
	}
	return rest
}

// sharedGet returns a block out of memcached, nil when it is not there, or not what it should be.
func (s *Server) sharedGet(f *flight) []byte {
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
	if err := sound(&f.p, stored); err != nil {
		s.metrics.damaged.WithLabelValues(tierShared).Inc()
		s.log.Error("a block in memcached is damaged; it is fetched from further away", "blob", f.p.Key(), "block", f.p.BlockOffset, "error", err)
		if err := s.shared.Delete(s.running, key, len(stored)); err != nil {
			s.metrics.sharedFailures.WithLabelValues("delete", sharedFailure(err)).Inc()
		}
		return nil
	}
	s.metrics.hits.WithLabelValues(tierShared).Inc()
	s.metrics.saved.WithLabelValues(tierShared).Add(float64(len(stored)))
	return stored
}

// sharedFailure is an error of memcached as the value of a label.
func sharedFailure(err error) string {
	switch {
	case errors.Is(err, memcached.ErrAway):
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

// fills puts blocks into memcached, beside the requests: nobody waits for it. What waits is bounded by Config.FillBytes; what comes
// when that is full is dropped and counted, for a cache that is too slow to be filled does not get better by being waited for.
type fills struct {
	s       *Server
	running sync.WaitGroup
	mu      struct {
		sync.Mutex
		queue   []fill
		bytes   int64 // of those that wait or are being written
		writers int
		closed  bool
	}
}

type fill struct {
	key  string
	data []byte
	ttl  time.Duration
}

// fillWriters is how many blocks are put into memcached at a time.
const fillWriters = 4

// fetched is told of every block that came from a store or a peer. The bytes may be part of a larger read.
func (w *fills) fetched(r *Rule, p *pointer.Pointer, stored []byte) {
	if r.Shared == KeepAlways {
		w.put(r, p, stored)
	}
}

// reused is told of every block that somebody asked for again.
func (w *fills) reused(r *Rule, p *pointer.Pointer, stored []byte) {
	if r.Shared == KeepReused {
		w.put(r, p, stored)
	}
}

func (w *fills) put(r *Rule, p *pointer.Pointer, stored []byte) {
	s := w.s
	now := time.Now()
	if s.shared == nil || !r.recent(p, now) || len(stored) > s.cfg.Memcached.ValueBytes {
		return
	}
	n := int64(len(stored))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return
	}
	if w.mu.bytes+n > s.cfg.FillBytes {
		s.metrics.fills.WithLabelValues("dropped").Inc()
		return
	}
	key := keyOf(p, false)
	w.mu.bytes += n
	// Afterwards nobody asks for it there.
	ttl := r.SharedAge - time.Duration(now.UnixMicro()-p.Blob.Time())*time.Microsecond
	w.mu.queue = append(w.mu.queue, fill{key.sharedKey(), stored, ttl})
	if w.mu.writers < fillWriters {
		w.mu.writers++
		w.running.Go(w.write)
	}
}

// write puts what waits until nothing does.
func (w *fills) write() {
	for {
		w.mu.Lock()
		if len(w.mu.queue) == 0 {
			w.mu.writers--
			w.mu.queue = nil
			w.mu.Unlock()
			return
		}
		next := w.mu.queue[0]
		w.mu.queue[0] = fill{}
		w.mu.queue = w.mu.queue[1:]
		w.mu.Unlock()
		err := w.s.shared.Set(w.s.running, next.key, next.data, next.ttl)
		if err != nil {
			w.s.metrics.fills.WithLabelValues("failed").Inc()
			w.s.metrics.sharedFailures.WithLabelValues("set", sharedFailure(err)).Inc()
		} else {
			w.s.metrics.fills.WithLabelValues("stored").Inc()
			w.s.metrics.filledBytes.Add(float64(len(next.data)))
		}
		w.mu.Lock()
		w.mu.bytes -= int64(len(next.data))
		w.mu.Unlock()
	}
}

// close drops what waits, and waits for what is being written.
func (w *fills) close() {
	w.mu.Lock()
	w.mu.closed = true
	w.mu.queue = nil
	w.mu.Unlock()
	w.running.Wait()
}
