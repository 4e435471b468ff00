package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
)

// block is how much is compressed at once: the size of a payload.
const block = 2 << 20

// blocks concatenates messages of the workload into blocks, as frames without their headers.
func (w Workload) blocks() [][]byte {
	var out [][]byte
	var b []byte
	// Twice the sample gives at least one whole block of every workload.
	for range 2 {
		for _, m := range w.Messages {
			if len(b)+len(m) > block {
				out = append(out, b)
				b = nil
			}
			b = append(b, m...)
		}
	}
	return append(out, b)
}

// cost is what an operation on the workload's bytes takes.
type cost struct {
	nsPerByte float64 // CPU time a byte of the uncompressed form
	ratio     float64 // uncompressed to compressed
}

// baselineTime is how long a baseline is measured: long against the resolution of CPU time, which is 1 to 10 ms.
const baselineTime = 700 * time.Millisecond

// compressAlone measures zstd at the level that batchers use, on one core, with buffers that are there already.
func compressAlone(w Workload) (cost, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return cost{}, err
	}
	blocks := w.blocks()
	var dst []byte
	return measure(func() (raw, packed int) {
		for _, b := range blocks {
			dst = enc.EncodeAll(b, dst[:0])
			raw += len(b)
			packed += len(dst)
		}
		return raw, packed
	})
}

// decompressAlone measures the decoder on the same blocks.
func decompressAlone(w Workload) (cost, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return cost{}, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return cost{}, err
	}
	defer dec.Close()
	var packedBlocks [][]byte
	for _, b := range w.blocks() {
		packedBlocks = append(packedBlocks, enc.EncodeAll(b, nil))
	}
	var dst []byte
	var failed error
	c, err := measure(func() (raw, packed int) {
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
		return cost{}, fmt.Errorf("decompress a block of the baseline: %w", failed)
	}
	return c, err
}

// measure repeats run, which says how many bytes it handled, for baselineTime after one round to warm up.
func measure(run func() (raw, packed int)) (cost, error) {
	run()
	var raw, packed int
	begin, cpu := time.Now(), cpuTime()
	for time.Since(begin) < baselineTime {
		r, p := run()
		raw += r
		packed += p
	}
	if raw == 0 || packed == 0 {
		return cost{}, errors.New("the baseline handled no bytes")
	}
	return cost{nsPerByte: float64(cpuTime()-cpu) / float64(raw), ratio: float64(raw) / float64(packed)}, nil
}
