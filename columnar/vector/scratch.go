package vector

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// ErrTooLarge means that the values of an expression over one batch take more memory than an evaluation may use.
var ErrTooLarge = errors.New("vector: too large")

const (
	// MaxMemory is the maximum number of bytes for the values of one expression over one batch: an expression like replace(a, ',',
	// b) can produce thousands of times its input. It bounds the total; the memory used at one time is far less, see memoryBudget.
	MaxMemory = 1 << 30
	// maxOutput is the maximum number of bytes for the texts of one result.
	maxOutput = 512 << 20
	// keptMemory is the maximum number of bytes that an idle scratch keeps.
	keptMemory = 16 << 20
	// blockWords is the size of blocks. The first ones are smaller, since constants are evaluated as batches of one row.
	blockWords = 32 << 10
	firstWords = 64
)

// memoryBudget bounds an evaluation. A batch whose intermediate values exceed the limit of a piece is evaluated in pieces with
// fewer rows.
type memoryBudget struct {
	piece int // limit of a piece
	row   int // limit of a single row; the process evaluates few of these at a time
	total int // limit of all pieces together
}

var defaultBudget = memoryBudget{piece: 16 << 20, row: 64 << 20, total: MaxMemory}

// heavy has a slot for each row that is evaluated with more memory than a piece has.
var heavy = make(chan struct{}, 2)

// scratchMemory is the memory of an evaluation, reused by the next one. It is allocated in order and freed as a whole.
type scratchMemory struct {
	blocks [][]uint64
	block  int // index of the block to allocate from
	used   int // used words of that block
	taken  int // total bytes, including those reported to reserveBytes
	limit  int // bound for taken
	err    error
}

var scratches = sync.Pool{New: func() any { return new(scratchMemory) }}

func newScratch(limit int) *scratchMemory {
	s := scratches.Get().(*scratchMemory)
	s.limit = limit
	return s
}

// free releases the memory for the next evaluation. Values in it must not be used afterwards.
func (s *scratchMemory) free() {
	kept := 0
	for i, b := range s.blocks {
		if kept += 8 * len(b); kept > keptMemory {
			clear(s.blocks[i:])
			s.blocks = s.blocks[:i]
			break
		}
	}
	s.block, s.used, s.taken, s.err = 0, 0, 0, nil
	scratches.Put(s)
}

// reserveBytes accounts for memory outside the blocks. If that exceeds the limit, it records an error and returns false; the
// caller must not allocate then.
func (s *scratchMemory) reserveBytes(bytes int) bool {
	if s.err != nil || bytes > s.limit-s.taken {
		s.failTooLarge()
		return false
	}
	s.taken += bytes
	return true
}

func (s *scratchMemory) failTooLarge() {
	if s.err == nil {
		s.err = ErrTooLarge
	}
}

// tooLarge returns ErrTooLarge with the size of the batch.
func tooLarge(rows, limit int) error {
	return fmt.Errorf("%w: the values of the expression over %d rows take more than %d bytes", ErrTooLarge, rows, limit)
}

// takeWords returns uninitialized memory.
func (s *scratchMemory) takeWords(n int) []uint64 {
	s.taken += 8 * n
	if s.taken > s.limit {
		s.failTooLarge() // n is proportional to the rows, so the evaluation can stop before the next operator
	}
	for s.block < len(s.blocks) {
		if b := s.blocks[s.block]; s.used+n <= len(b) {
			out := b[s.used : s.used+n : s.used+n]
			s.used += n
			return out
		}
		s.block++
		s.used = 0
	}
	s.blocks = append(s.blocks, make([]uint64, max(n, min(blockWords, firstWords<<min(len(s.blocks), 9)))))
	s.used = n
	return s.blocks[s.block][:n:n]
}

// takeBytes returns n uninitialized bytes, aligned for every fixedValue.
func (s *scratchMemory) takeBytes(n int) []byte {
	return castMemory[byte](s.takeWords((n + 7) / 8))[:n]
}

// takeValues returns n uninitialized values in scratch memory.
func takeValues[T fixedValue](s *scratchMemory, n int) []T {
	var v T
	return castMemory[T](s.takeBytes(n * int(unsafe.Sizeof(v))))
}

// bitmap returns an uninitialized bitmap of n rows.
func (s *scratchMemory) bitmap(n int) bitmap { return s.takeWords(wordsFor(n)) }

// zeros returns a bitmap of n rows with no bit set.
func (s *scratchMemory) zeros(n int) bitmap {
	b := s.bitmap(n)
	clear(b)
	return b
}

// ones returns a bitmap with the bits of all n rows set.
func (s *scratchMemory) ones(n int) bitmap {
	b := s.bitmap(n)
	b.fill(n)
	return b
}

// copyOf returns a copy of b.
func (s *scratchMemory) copyOf(b bitmap) bitmap {
	c := bitmap(s.takeWords(len(b)))
	copy(c, b)
	return c
}
