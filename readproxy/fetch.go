package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/pointer"
	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// load returns the block that p points into, decompressed if raw: from the cache, or fetched, together with all others that ask
// for it now. It fails with ctx's error when ctx ends first; the fetch goes on for the others. Errors have a reason.
func (s *Server) load(ctx context.Context, p *pointer.Pointer, raw bool) (*block, error) {
	key := keyOf(p, raw)
	if b := s.cache.get(key); b != nil {
		s.metrics.hits.Inc()
		s.metrics.savedBytes.Add(float64(p.BlockLen))
		return b, nil
	}
	s.metrics.misses.Inc()
	mine := false
	flight := s.flights.DoChan(key.flight(), func() (any, error) {
		mine = true
		return s.fly(p, key)
	})
	select {
	case r := <-flight:
		if r.Err != nil {
			return nil, r.Err
		}
		if !mine {
			s.metrics.shared.Inc()
			s.metrics.savedBytes.Add(float64(p.BlockLen))
		}
		return r.Val.(*block), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// fly fetches a block within the bounds. It belongs to no request: askers come and go.
func (s *Server) fly(p *pointer.Pointer, key blockKey) (*block, error) {
	if !s.enter() {
		return nil, s.refusal()
	}
	defer s.leave()
	// Another fetch may have ended between this asker's look and now.
	if b := s.cache.get(key); b != nil {
		return b, nil
	}
	need := int64(p.BlockLen)
	if key.raw && p.Codec != pointer.CodecNone {
		need += int64(p.BlockRawLen)
	}
	if !s.fetchBytes.TryAcquire(need) {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.cfg.RetryAfter,
			"the blocks being fetched take all of the %d bytes for them: try again", s.cfg.FetchBytes)
	}
	defer s.fetchBytes.Release(need)
	s.metrics.fetching.Inc()
	defer s.metrics.fetching.Dec()
	ctx, cancel := context.WithTimeout(s.running, s.cfg.FetchTimeout)
	defer cancel()
	// As many wait here as FetchBytes allows.
	if err := s.fetches.Acquire(ctx, 1); err != nil {
		return nil, s.storeError(p, err)
	}
	defer s.fetches.Release(1)
	b, err := s.fetch(ctx, p, key.raw)
	if err != nil {
		return nil, s.storeError(p, err)
	}
	s.cache.add(key, b)
	return b, nil
}

// errRegion is a region that has no store here.
var errRegion = errors.New("readproxy: no store for the region")

// fetch reads a block from its store and checks it.
func (s *Server) fetch(ctx context.Context, p *pointer.Pointer, raw bool) (*block, error) {
	store, err := s.deps.Blobs(p.Region)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", errRegion, p.Region, err)
	}
	s.metrics.storeReads.Inc()
	stored, err := layout.ReadBlock(ctx, store, p)
	if err != nil {
		return nil, err
	}
	s.metrics.storeBytes.Add(float64(len(stored)))
	if !raw {
		h, err := firstHeader(p, stored)
		switch {
		case errors.Is(err, record.ErrVersion):
			return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", place(p), err)
		case err != nil:
			return nil, damage(p, err)
		}
		return &block{data: stored, category: h.CategoryName()}, nil
	}
	if p.Codec == pointer.CodecNone {
		return &block{data: stored}, nil
	}
	data, err := layout.Decompress(nil, p.Codec, stored, int(p.BlockRawLen))
	if err != nil {
		return nil, damage(p, err)
	}
	return &block{data: data}, nil
}

// storeError gives the error of a fetch a reason.
func (s *Server) storeError(p *pointer.Pointer, err error) error {
	switch {
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_INVALID:
		return err
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_CORRUPT:
		s.log.Error("a block is damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return err
	case errors.Is(err, layout.ErrDamaged):
		s.log.Error("a block is damaged", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
		return damage(p, err)
	case errors.Is(err, blob.ErrNotFound):
		return rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s is not in its store: retention removed it, or it was lost: %w", place(p), err)
	case s.running.Err() != nil:
		return s.refusal()
	case errors.Is(err, context.DeadlineExceeded):
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.cfg.RetryAfter, "%s was not fetched within %v: try again: %w", place(p), s.cfg.FetchTimeout, err)
	case errors.Is(err, errRegion):
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.cfg.RetryAfter, "%s can't be fetched by this server: %w", place(p), err)
	}
	s.log.Warn("a block could not be fetched", "blob", p.Key(), "block", p.BlockOffset, "region", p.Region, "error", err)
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.cfg.RetryAfter, "%s: the store failed, try again: %w", place(p), err)
}

// place names where a payload is.
func place(p *pointer.Pointer) string {
	text := fmt.Sprintf("blob %s, block at %d, payload at %d", p.Key(), p.BlockOffset, p.Offset)
	if p.Region != "" {
		text += " (region " + p.Region + ")"
	}
	return text
}

func damage(p *pointer.Pointer, err error) error {
	return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s is damaged: %w", place(p), err)
}

// headerRoom is what a frame's header and category name take at most.
const headerRoom = record.HeaderLen + record.MaxCategoryName

// peekers are decoders that look at the beginning of a block. They start no goroutines.
var peekers = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(pointer.MaxBlockRaw))
	if err != nil {
		return err
	}
	return d
}}

// firstHeader returns the header of the first frame of a block that is one payload. Of a compressed block only the beginning is
// decompressed. The header is good, and belongs to nobody else.
func firstHeader(p *pointer.Pointer, stored []byte) (record.Header, error) {
	if p.Codec == pointer.CodecNone {
		return record.ParseHeader(stored)
	}
	v := peekers.Get()
	d, ok := v.(*zstd.Decoder)
	if !ok {
		return record.Header{}, v.(error)
	}
	defer func() {
		_ = d.Reset(nil) // forgets stored
		peekers.Put(d)
	}()
	if err := d.Reset(bytes.NewReader(stored)); err != nil {
		return record.Header{}, err
	}
	buf := make([]byte, headerRoom)
	n, err := io.ReadFull(d, buf)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return record.Header{}, err
	}
	return record.ParseHeader(buf[:n])
}
