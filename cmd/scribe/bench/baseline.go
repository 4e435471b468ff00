package bench

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
)

// blockBytes is how much is compressed at once: the size of a payload.
const blockBytes = 2 << 20

// concatBlocks concatenates messages of the workload into blocks, as frames without their headers.
func (w Workload) concatBlocks() [][]byte {
	var out [][]byte
	var b []byte
	// Twice the sample gives at least one whole block of every workload.
	for range 2 {
		for _, m := range w.Messages {
			if len(b)+len(m) > blockBytes {
				out = append(out, b)
				b = nil
			}
			b = append(b, m...)
		}
	}
	return append(out, b)
}

// baselineCost is what an operation on the workload's bytes takes.
type baselineCost struct {
	nsPerByte float64 // CPU time a byte of the uncompressed form
	ratio     float64 // uncompressed to compressed
}

// baselineTime is how long a baseline is measured: long against the resolution of CPU time, which is 1 to 10 ms.
const baselineTime = 700 * time.Millisecond

// compressAlone measures zstd at the level that batchers use, on one core, with buffers that are there already.
func compressAlone(w Workload) (baselineCost, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return baselineCost{}, err
	}
	blocks := w.concatBlocks()
	var dst []byte
	return measureBaseline(func() (raw, packed int) {
		for _, b := range blocks {
			dst = enc.EncodeAll(b, dst[:0])
			raw += len(b)
			packed += len(dst)
		}
		return raw, packed
	})
}

// streamBytes is how much compressStream compresses: more than caches hold.
const streamBytes = 320 << 20

// compressStream measures zstd at the level that batchers use over a stream that no cache holds, in blocks of a payload's size that
// differ from one another, on as many cores as the path may use: what the path's compression costs with nothing around it.
func compressStream(w Workload) (baselineCost, error) {
	blocks := w.makeStream(streamBytes)
	cores := runtime.GOMAXPROCS(0)
	encoders := make([]*zstd.Encoder, cores)
	for i := range encoders {
		var err error
		if encoders[i], err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)); err != nil {
			return baselineCost{}, err
		}
		encoders[i].EncodeAll(blocks[0], make([]byte, 0, blockBytes)) // makes its tables
	}
	var (
		next, packed atomic.Int64
		workers      sync.WaitGroup
		cpu          = cpuTime()
	)
	for _, enc := range encoders {
		workers.Go(func() {
			dst := make([]byte, 0, enc.MaxEncodedSize(blockBytes))
			for i := next.Add(1) - 1; i < int64(len(blocks)); i = next.Add(1) - 1 {
				dst = enc.EncodeAll(blocks[i], dst[:0])
				packed.Add(int64(len(dst)))
			}
		})
	}
	workers.Wait()
	used := cpuTime() - cpu
	raw := 0
	for _, b := range blocks {
		raw += len(b)
	}
	return baselineCost{nsPerByte: float64(used) / float64(raw), ratio: float64(raw) / float64(packed.Load())}, nil
}

// makeStream makes blocks of total bytes at least, each in memory of its own, and each beginning at another message.
func (w Workload) makeStream(total int) [][]byte {
	const stride = 7919 // a prime: it visits all messages before it comes back to the first
	var out [][]byte
	for n, first := 0, 0; n < total; first += stride {
		b := make([]byte, 0, blockBytes)
		for i := first; ; i++ {
			m := w.Messages[i%len(w.Messages)]
			if len(b) > 0 && len(b)+len(m) > blockBytes {
				break
			}
			b = append(b, m...)
		}
		out = append(out, b)
		n += len(b)
	}
	return out
}

// decompressStream measures the decoder over a stream that no cache holds, in blocks of a payload's size that differ from one
// another, on as many cores as the path may use: what decompression costs with nothing around it.
func decompressStream(w Workload) (baselineCost, error) {
	packed, err := packBlocks(w.makeStream(streamBytes))
	if err != nil {
		return baselineCost{}, err
	}
	runtime.GC() // what was packed must not be collected while it is measured
	cpu := cpuTime()
	raw, err := unpackAll(len(packed), func(i int, d *blockUnpacker) error { return d.decodeBlock(packed[i]) })
	used := cpuTime() - cpu
	if err != nil {
		return baselineCost{}, err
	}
	stored := 0
	for _, b := range packed {
		stored += len(b)
	}
	return baselineCost{nsPerByte: float64(used) / float64(raw), ratio: float64(raw) / float64(stored)}, nil
}

// packBlocks compresses blocks as batchers do, each into memory of its own, on all cores. The blocks are given up one by one.
func packBlocks(blocks [][]byte) ([][]byte, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	packed := make([][]byte, len(blocks))
	_, err = inParallel(len(blocks), func() func(int) (int, error) {
		var scratch []byte
		return func(i int) (int, error) {
			scratch = enc.EncodeAll(blocks[i], scratch[:0])
			packed[i], blocks[i] = bytes.Clone(scratch), nil
			return 0, nil
		}
	})
	return packed, err
}

// blockUnpacker is a decoder with the buffers that it needs, for one goroutine.
type blockUnpacker struct {
	decoder *zstd.Decoder
	src     []byte // of a blob that is read
	dst     []byte
	raw     int // bytes that were decoded
}

func (u *blockUnpacker) decodeBlock(packed []byte) (err error) {
	if u.dst, err = u.decoder.DecodeAll(packed, u.dst[:0]); err != nil {
		return fmt.Errorf("decompress a block of the baseline: %w", err)
	}
	u.raw += len(u.dst)
	return nil
}

// unpackAll runs decode for 0 to n-1 on all cores, and returns how many bytes were decoded.
func unpackAll(n int, decode func(i int, u *blockUnpacker) error) (int64, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.IgnoreChecksum(true))
	if err != nil {
		return 0, err
	}
	defer decoder.Close()
	return inParallel(n, func() func(int) (int, error) {
		u := &blockUnpacker{decoder: decoder, dst: make([]byte, 0, blockBytes)}
		return func(i int) (int, error) {
			u.raw = 0
			err := decode(i, u)
			return u.raw, err
		}
	})
}

// inParallel runs what worker returns, one for each core, for 0 to n-1, and adds up the results.
func inParallel(n int, worker func() func(int) (int, error)) (int64, error) {
	var (
		next, sum atomic.Int64
		failed    = make([]error, runtime.GOMAXPROCS(0))
		workers   sync.WaitGroup
	)
	for w := range failed {
		run := worker()
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && failed[w] == nil; i = next.Add(1) - 1 {
				var got int
				got, failed[w] = run(int(i))
				sum.Add(int64(got))
			}
		})
	}
	workers.Wait()
	return sum.Load(), errors.Join(failed...)
}

// decompressAlone measures the decoder over the same few blocks again and again, on one core.
func decompressAlone(w Workload) (baselineCost, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return baselineCost{}, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return baselineCost{}, err
	}
	defer dec.Close()
	var packedBlocks [][]byte
	for _, b := range w.concatBlocks() {
		packedBlocks = append(packedBlocks, enc.EncodeAll(b, nil))
	}
	var dst []byte
	var failed error
	c, err := measureBaseline(func() (raw, packed int) {
		for _, b := range packedBlocks {
			if dst, failed = dec.DecodeAll(b, dst[:0]); failed != nil {
				return raw, packed
			}
			raw += len(dst)
			packed += len(b)
		}
		return raw, packed
	})
	if failed != nil {
		return baselineCost{}, fmt.Errorf("decompress a block of the baseline: %w", failed)
	}
	return c, err
}

// measureBaseline repeats run, which says how many bytes it handled, for baselineTime after one round to warm up.
func measureBaseline(run func() (raw, packed int)) (baselineCost, error) {
	run()
	var raw, packed int
	begin, cpu := time.Now(), cpuTime()
	for time.Since(begin) < baselineTime {
		r, p := run()
		raw += r
		packed += p
	}
	if raw == 0 || packed == 0 {
		return baselineCost{}, errors.New("the baseline handled no bytes")
	}
	return baselineCost{nsPerByte: float64(cpuTime()-cpu) / float64(raw), ratio: float64(raw) / float64(packed)}, nil
}
