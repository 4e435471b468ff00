package bench

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
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

// newEncoder returns an encoder of the level that batchers use, for one goroutine.
func newEncoder(o ...zstd.EOption) (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, append(o, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))...)
}

// compressAlone measures zstd at the level that batchers use, on one core, with buffers that are there already.
func compressAlone(w Workload) (baselineCost, error) {
	enc, err := newEncoder()
	if err != nil {
		return baselineCost{}, err
	}
	blocks := w.concatBlocks()
	var dst []byte
	return measureBaseline(func() (raw, packed int, err error) {
		for _, b := range blocks {
			dst = enc.EncodeAll(b, dst[:0])
			raw += len(b)
			packed += len(dst)
		}
		return raw, packed, nil
	})
}

// streamBytes is how much compressStream compresses: more than caches hold.
const streamBytes = 320 << 20

// compressStream measures zstd at the level that batchers use over a stream that no cache holds, in blocks of a payload's size that
// differ from one another, on as many cores as the path may use: what the path's compression costs with nothing around it.
func compressStream(w Workload) (baselineCost, error) {
	blocks := w.makeStream(streamBytes)
	packed, used, err := inParallel(len(blocks), func() (func(int) (int, error), error) {
		enc, err := newEncoder(zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		dst := enc.EncodeAll(blocks[0], make([]byte, 0, enc.MaxEncodedSize(blockBytes))) // makes its tables
		return func(i int) (int, error) {
			dst = enc.EncodeAll(blocks[i], dst[:0])
			return len(dst), nil
		}, nil
	})
	return newBaselineCost(used, totalLen(blocks), packed), err
}

func newBaselineCost(used time.Duration, raw, packed int64) baselineCost {
	return baselineCost{nsPerByte: float64(used) / float64(raw), ratio: float64(raw) / float64(packed)}
}

func totalLen(blocks [][]byte) (n int64) {
	for _, b := range blocks {
		n += int64(len(b))
	}
	return n
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
	raw, used, err := unpackAll(len(packed), func(i int, d *blockUnpacker) error { return d.decodeBlock(packed[i]) })
	return newBaselineCost(used, raw, totalLen(packed)), err
}

// packBlocks compresses blocks as batchers do, each into memory of its own, on all cores. The blocks are given up one by one.
func packBlocks(blocks [][]byte) ([][]byte, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, err
	}
	packed := make([][]byte, len(blocks))
	_, _, err = inParallel(len(blocks), func() (func(int) (int, error), error) {
		var scratch []byte
		return func(i int) (int, error) {
			scratch = enc.EncodeAll(blocks[i], scratch[:0])
			packed[i], blocks[i] = bytes.Clone(scratch), nil
			return 0, nil
		}, nil
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

// unpackAll runs decode for 0 to n-1 on all cores, and returns how many bytes were decoded in what CPU time.
func unpackAll(n int, decode func(i int, u *blockUnpacker) error) (int64, time.Duration, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)), zstd.IgnoreChecksum(true))
	if err != nil {
		return 0, 0, err
	}
	defer decoder.Close()
	return inParallel(n, func() (func(int) (int, error), error) {
		u := &blockUnpacker{decoder: decoder, dst: make([]byte, 0, blockBytes)}
		return func(i int) (int, error) {
			u.raw = 0
			err := decode(i, u)
			return u.raw, err
		}, nil
	})
}

// inParallel runs what newWorker returns, one for each core, for 0 to n-1. It adds up the results, and measures their CPU time.
func inParallel(n int, newWorker func() (func(int) (int, error), error)) (int64, time.Duration, error) {
	var (
		next, sum atomic.Int64
		runs      = make([]func(int) (int, error), runtime.GOMAXPROCS(0))
		group     errgroup.Group
	)
	for w := range runs {
		var err error
		if runs[w], err = newWorker(); err != nil {
			return 0, 0, err
		}
	}
	cpu := cpuTime()
	for _, run := range runs {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				got, err := run(int(i))
				if err != nil {
					return err
				}
				sum.Add(int64(got))
			}
			return nil
		})
	}
	err := group.Wait()
	return sum.Load(), cpuTime() - cpu, err
}

// decompressAlone measures the decoder over the same few blocks again and again, on one core.
func decompressAlone(w Workload) (baselineCost, error) {
	enc, err := newEncoder()
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
	u := &blockUnpacker{decoder: dec}
	return measureBaseline(func() (raw, packed int, err error) {
		u.raw = 0
		for _, b := range packedBlocks {
			if err := u.decodeBlock(b); err != nil {
				return 0, 0, err
			}
			packed += len(b)
		}
		return u.raw, packed, nil
	})
}

// measureBaseline repeats run, which says how many bytes it handled, for baselineTime after one round to warm up.
func measureBaseline(run func() (raw, packed int, err error)) (baselineCost, error) {
	if _, _, err := run(); err != nil {
		return baselineCost{}, err
	}
	var raw, packed int
	begin, cpu := time.Now(), cpuTime()
	for time.Since(begin) < baselineTime {
		r, p, err := run()
		if err != nil {
			return baselineCost{}, err
		}
		raw += r
		packed += p
	}
	if raw == 0 || packed == 0 {
		return baselineCost{}, errors.New("the baseline handled no bytes")
	}
	return newBaselineCost(cpuTime()-cpu, int64(raw), int64(packed)), nil
}
