package vector

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// ErrTooLarge says that the values of an expression over one batch take more memory than an evaluation may have.
var ErrTooLarge = errors.New("vector: too large")

const (
	// MaxMemory is how many bytes the values of one expression over one batch may take: one like replace(a, ',', b) can make thousands of
	// times of what it was given. It bounds what is made in all; at a time it is far less, see budget.
	MaxMemory = 1 << 30
	// maxOutput is how many bytes the texts of one result may have.
	maxOutput = 512 << 20
	// keptMemory is how many bytes an idle scratch keeps.
	keptMemory = 16 << 20
	// blockWords is how large blocks are; the first ones are smaller, since constants are evaluated as batches of one row.
	blockWords = 32 << 10
	firstWords = 64
)

// memoryBudget bounds an evaluation. A batch whose intermediate values are more than a piece may have is evaluated in pieces of fewer rows.
type memoryBudget struct {
	piece int // of a piece
	row   int // of a single row, few of which are evaluated at a time in the process
	total int // of all pieces together
}

var defaultBudget = memoryBudget{piece: 16 << 20, row: 64 << 20, total: MaxMemory}

// heavy has a place for each row that is evaluated with more memory than a piece has.
var heavy = make(chan struct{}, 2)

// scratchMemory is the memory of an evaluation, used again by the next one. It is taken in order and given back as a whole.
type scratchMemory struct {
	blocks [][]uint64
	block  int // of blocks, from which memory is taken
	used   int // words of that block
	taken  int // bytes of all, with what grow was told of
	limit  int // on taken
	err    error
}

var scratches = sync.Pool{New: func() any { return new(scratchMemory) }}

func newScratch(limit int) *scratchMemory {
	s := scratches.Get().(*scratchMemory)
	s.limit = limit
	return s
}

// free gives the memory to the next evaluation. Nothing that lies in it may be used any more.
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

// reserveBytes accounts for memory beside the blocks; false, and an error is kept, if that is too much. Nothing may be allocated then.
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

// tooLarge is ErrTooLarge with how large a batch was that had to be given up.
func tooLarge(rows, limit int) error {
	return fmt.Errorf("%w: the values of the expression over %d rows take more than %d bytes", ErrTooLarge, rows, limit)
}

// takeWords returns memory with any content.
func (s *scratchMemory) takeWords(n int) []uint64 {
	s.taken += 8 * n
	if s.taken > s.limit {
		s.failTooLarge() // what is asked for is in proportion to the rows: the evaluation stops before the next operator
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

// fixedValue are the values of constant size that a vector can have.
type fixedValue interface {
	int32 | int64 | uint64 | float64 | decimal128.Num | arrow.MonthDayNanoInterval
}

// takeValues returns n values with any content, in the scratch's memory.
func takeValues[T fixedValue](s *scratchMemory, n int) []T {
	if n == 0 {
		return []T{}
	}
	var v T
	size := int(unsafe.Sizeof(v))
	w := s.takeWords((n*size + 7) / 8)
	// Words are aligned to 8 bytes, which is enough for every type of fixed; none has pointers.
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(w))), n)
}

// bitmap returns a bitmap of n rows with any content.
func (s *scratchMemory) bitmap(n int) bitmap { return s.takeWords(wordsFor(n)) }

// zeros returns a bitmap of n rows without any.
func (s *scratchMemory) zeros(n int) bitmap {
	b := s.bitmap(n)
	clear(b)
	return b
}

// ones returns a bitmap of all of n rows.
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
