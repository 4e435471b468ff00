package batcher

import (
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"scribe/batcher/arena"
	"scribe/internal/base/buffers"
	"scribe/internal/format/pointer"
	"scribe/storage/blob/encryption"
)

// maxScratch bounds the memory that a worker keeps between blocks, in bytes. Larger blocks, of a single huge frame, are rare.
const maxScratch = 8 << 20

// blockCompressor compresses blocks in a fixed number of workers. The most urgent blocks come first; otherwise the order is that of
// enqueue. The memory bound of the frames in the blocks also bounds its queues.
type blockCompressor struct {
	pool *buffers.Pool
	// done is called when a block's codec and stored bytes are set. Afterwards the compressor does not read the spans' memory.
	done    func(*block)
	workers sync.WaitGroup
	more    sync.Cond // on mu

	mu struct {
		sync.Mutex
		// queues are by urgency. A block that became more urgent is in several.
		queues [urgencies][]*block
		closed bool
	}
}

func newCompressor(workers int, pool *buffers.Pool, done func(*block)) (*blockCompressor, error) {
	c := &blockCompressor{pool: pool, done: done}
	c.more.L = &c.mu
	encoders := make([]*zstd.Encoder, workers)
	for i := range encoders {
		// Frames carry checksums of their own, and blocks have one over the stored bytes.
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, fmt.Errorf("batcher: zstd encoder: %w", err)
		}
		encoders[i] = enc
	}
	for _, enc := range encoders {
		c.workers.Go(func() { c.compressBlocks(enc) })
	}
	return c, nil
}

func (c *blockCompressor) enqueue(blocks []*block) {
	if len(blocks) == 0 {
		return
	}
	c.mu.Lock()
	for _, b := range blocks {
		b.state = blockQueued
		c.mu.queues[b.urgency] = append(c.mu.queues[b.urgency], b)
	}
	c.mu.Unlock()
	if len(blocks) == 1 {
		c.more.Signal()
	} else {
		c.more.Broadcast()
	}
}

// prioritize makes blocks of flushes urgent that are queued, or that will be.
func (c *blockCompressor) prioritize(blocks []*block) {
	if len(blocks) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range blocks {
		urgency := b.flush.urgency()
		if b.state == blockQueued && b.urgency < urgency {
			c.mu.queues[urgency] = append(c.mu.queues[urgency], b)
		}
		b.urgency = urgency
	}
}

// close stops the workers once the queues are empty, and waits for them.
func (c *blockCompressor) close() {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.more.Broadcast()
	c.workers.Wait()
}

// nextBlock waits for a block. It returns nil when the compressor is closed and its queues are empty.
func (c *blockCompressor) nextBlock() *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for i := range slices.Backward(c.mu.queues[:]) {
			for queue := &c.mu.queues[i]; len(*queue) > 0; {
				b := (*queue)[0]
				(*queue)[0] = nil
				*queue = (*queue)[1:]
				if b.state == blockQueued {
					b.state = blockTaken
					return b
				}
			}
		}
		if c.mu.closed {
			return nil
		}
		c.more.Wait()
	}
}

func (c *blockCompressor) compressBlocks(enc *zstd.Encoder) {
	var (
		scratch, gathered []byte
		segments          []arena.Segment
	)
	for b := c.nextBlock(); b != nil; b = c.nextBlock() {
		segments = b.appendSegments(segments[:0])
		src := arena.Adjacent(segments)
		if src == nil {
			gathered = slices.Grow(gathered[:0], b.raw)
			for _, s := range segments {
				gathered = append(gathered, s.Bytes()...)
			}
			src = gathered
		}
		if n := enc.MaxEncodedSize(len(src)); cap(scratch) < n {
			scratch = make([]byte, 0, n)
		}
		scratch = enc.EncodeAll(src, scratch[:0])
		b.codec = pointer.CodecZstd
		out := scratch
		if len(scratch) >= len(src) {
			b.codec, out = pointer.CodecNone, src
		}
		// The copy has the compressed size, the scratch buffer the raw size.
		if key := b.key(); key != nil {
			b.stored = c.pool.Get(len(out) + pointer.EncryptionOverhead)
			b.stored.B = key.AppendBlock(b.stored.B[:0], b.codec, out, b.raw)
			b.codec = b.codec.Encrypted()
		} else {
			b.stored = c.pool.Get(len(out))
			copy(b.stored.B, out)
		}
		if cap(scratch) > maxScratch {
			scratch = nil
		}
		if cap(gathered) > maxScratch {
			gathered = nil
		}
		c.done(b)
	}
}

// key returns the key to encrypt the block with; nil for none. If the category's key changed meanwhile, it is one of both.
func (b *block) key() *encryption.Key {
	for _, pl := range b.payloads {
		if pl.key != nil {
			return pl.key
		}
	}
	return nil
}

// appendSegments appends the memory segments of the block's frames.
func (b *block) appendSegments(to []arena.Segment) []arena.Segment {
	for _, pl := range b.payloads {
		for i := range pl.spans {
			to = append(to, pl.spans[i].mem)
		}
	}
	return to
}
