package sim

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/memory"
)

// store is the cell's store of blobs, as far away and as faulty as a seed wants.
type store struct {
	blobs *memory.Store
	mu    sync.Mutex
	rng   *rand.Rand
	// nearest and farthest bound how long a request takes.
	nearest, farthest time.Duration
	faults            storeFaults
	gets, puts        atomic.Int64
	// drawn is what lives of processes and writers drew, the first of each.
	drawn  map[string][]string
	digest *digest
	// reused is told of a blob's key that is put again with other bytes.
	reused func(key string)
}

// storeFaults are chances, from 0 to 1, of a request.
type storeFaults struct {
	// refuse answers with blob.ErrUnavailable and does nothing. loseAnswer does what was asked for and answers with an error.
	refuse, loseAnswer float64
	// late puts a blob after its request has failed.
	late float64
	// cutList ends a listing with an error in the middle.
	cutList float64
	// slow multiplies the time of a request by ten.
	slow float64
}

func newStore(rng *rand.Rand, d *digest, nearest, farthest time.Duration) *store {
	return &store{digest: d, blobs: memory.New(), rng: rng, nearest: nearest, farthest: farthest, drawn: map[string][]string{}}
}

func (s *store) set(f storeFaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// draw reports whether a fault with a chance happens now.
func (s *store) draw(chance func(storeFaults) float64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := chance(s.faults)
	return p > 0 && s.rng.Float64() < p
}

func (s *store) travel(ctx context.Context) error {
	s.mu.Lock()
	d := s.nearest
	if more := s.farthest - s.nearest; more > 0 {
		d += time.Duration(s.rng.Int64N(int64(more)))
	}
	if s.faults.slow > 0 && s.rng.Float64() < s.faults.slow {
		d *= 10
	}
	s.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", blob.ErrUnavailable, context.Cause(ctx))
	}
}

const (
	// blobBits is how many bytes at the end of a blob's key are not its time.
	blobBits = len("74dc-8439-7ab203ba274b")
	// maxDrawn bounds what is noted of a process's life.
	maxDrawn = 100
)

// noteDrawn notes what a process, or a client, drew.
func (s *store) noteDrawn(who, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.drawn[who]) < maxDrawn {
		s.drawn[who] = append(s.drawn[who], what)
	}
}

// access is the store as one process reaches it. It implements blob.Store.
type access struct {
	*store
	gate   *gate
	closed atomic.Bool
	// name is that of the process's life, host where it runs.
	name, host string
	net        *network
}

// fence ends the access of a process that is gone.
func (a *access) fence() { a.closed.Store(true) }

// begin is the way of a request to the store.
func (a *access) begin(ctx context.Context, key string) error {
	a.gate.pass()
	if a.closed.Load() {
		return blob.ErrClosed
	}
	if err := blob.CheckKey(key); key != "" && err != nil {
		return err
	}
	a.digest.note(a.host, key)
	if err := a.net.awaitWay(ctx, a.host); err != nil {
		return fmt.Errorf("%w: %w", blob.ErrUnavailable, err)
	}
	if err := a.travel(ctx); err != nil {
		return err
	}
	if a.draw(func(f storeFaults) float64 { return f.refuse }) {
		return fmt.Errorf("%w: simulated", blob.ErrUnavailable)
	}
	return nil
}

// end is the way of the answer back.
func (a *access) end(ctx context.Context, err error) error {
	a.gate.pass()
	if a.closed.Load() {
		return blob.ErrClosed
	}
	if werr := a.net.awaitWay(ctx, a.host); werr != nil {
		return fmt.Errorf("%w: no answer: %w", blob.ErrUnavailable, werr)
	}
	if err == nil && a.draw(func(f storeFaults) float64 { return f.loseAnswer }) {
		return fmt.Errorf("%w: the answer was lost", blob.ErrUnavailable)
	}
	return err
}

// Put implements blob.Store.
func (a *access) Put(ctx context.Context, key string, parts ...[]byte) error {
	a.puts.Add(1)
	if strings.HasPrefix(key, pointer.KeyRoot) {
		a.noteDrawn(a.name, key[len(key)-blobBits:])
	}
	if err := a.begin(ctx, key); err != nil {
		return err
	}
	if a.draw(func(f storeFaults) float64 { return f.late }) {
		copies := make([][]byte, len(parts))
		for i, p := range parts {
			copies[i] = append([]byte(nil), p...)
		}
		a.mu.Lock()
		after := time.Duration(a.rng.Int64N(int64(time.Minute)))
		a.mu.Unlock()
		time.AfterFunc(after, func() { _ = a.put(context.Background(), key, copies...) })
		return fmt.Errorf("%w: it may arrive later", blob.ErrUnavailable)
	}
	return a.end(ctx, a.put(ctx, key, parts...))
}

// put puts what has arrived. The key of a blob is its own for ever.
func (s *store) put(ctx context.Context, key string, parts ...[]byte) error {
	if strings.HasPrefix(key, pointer.KeyRoot) {
		if info, err := s.blobs.Stat(ctx, key); err == nil {
			old := make([]byte, info.Size)
			if err := s.blobs.ReadAt(ctx, key, old, 0); err != nil || !bytes.Equal(old, bytes.Join(parts, nil)) {
				s.reused(key)
			}
		}
	}
	return s.blobs.Put(ctx, key, parts...)
}

// ReadAt implements blob.Store.
func (a *access) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	a.gets.Add(1)
	if err := a.begin(ctx, key); err != nil {
		return err
	}
	return a.end(ctx, a.blobs.ReadAt(ctx, key, dst, off))
}

// Stat implements blob.Store.
func (a *access) Stat(ctx context.Context, key string) (blob.Info, error) {
	if err := a.begin(ctx, key); err != nil {
		return blob.Info{}, err
	}
	info, err := a.blobs.Stat(ctx, key)
	return info, a.end(ctx, err)
}

// List implements blob.Store.
func (a *access) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := a.begin(ctx, ""); err != nil {
			yield(blob.Info{}, err)
			return
		}
		for info, err := range a.blobs.List(ctx, prefix) {
			if a.draw(func(f storeFaults) float64 { return f.cutList }) {
				err = fmt.Errorf("%w: the listing was cut", blob.ErrUnavailable)
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// Delete implements blob.Store.
func (a *access) Delete(ctx context.Context, key string) error {
	if err := a.begin(ctx, key); err != nil {
		return err
	}
	return a.end(ctx, a.blobs.Delete(ctx, key))
}

// Close implements blob.Store. The blobs remain: they are the cell's.
func (a *access) Close() error {
	a.fence()
	return nil
}
