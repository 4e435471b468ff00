package rows

import (
	"errors"
	"fmt"
	"math"

	"scribe/columnar"
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// ColumnIndex is the hidden column that batches of a read proxy have in place of the three that only a reader with the pointer knows: the
// message's index in the payload, uint32. All rows of a message have the same.
const ColumnIndex = "_index"

// Spec is what a batch shall be made of.
type Spec struct {
	Schema *schema.Schema
	// Columns are the batch's columns, in their order: declared ones, those that every category has except those that only a pointer knows
	// (_persisted, _shard, _offset), and [ColumnIndex]. There may be none: the batch then only counts rows.
	Columns []string
	// Where keeps the rows for which it is true; nil keeps all. It may name every column that Columns may.
	Where expr.Expr
	// EarlyStop allows that the rest of a row is not looked at once Where can't become true. It is for predicates that are not true when
	// every declared column is null and that don't name _error or _rest, and for categories that reject.
	EarlyStop bool
	// Zones are the columns of which the values of all rows, kept or not, are reported to the builder that is given to Transcode.
	Zones  []string
	Limits Limits
}

// Limits bound what a payload may cost. The zero value of each means its default.
type Limits struct {
	// Rows of one batch, those included that are not kept. Default and maximum columnar.MaxRows.
	Rows int
	// RowBytes is the length of a row above which it does not fit: it is an error row. Default 16 MiB.
	RowBytes int
	// Bytes bounds the buffers of one batch. Default 1 GiB. One column's values have at most 2 GiB whatever is set.
	Bytes int64
}

// Default limits.
const (
	DefaultRowBytes = 16 << 20
	DefaultBytes    = 1 << 30
)

// withDefaults fills in what is not set.
func (l Limits) withDefaults() Limits {
	if l.Rows == 0 {
		l.Rows = columnar.MaxRows
	}
	if l.RowBytes == 0 {
		l.RowBytes = DefaultRowBytes
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultBytes
	}
	return l
}

func (l Limits) validate() error {
	var errs []error
	if l.Rows < 1 || l.Rows > columnar.MaxRows {
		errs = append(errs, fmt.Errorf("transcode: invalid limit of %d rows: want 1 to %d", l.Rows, columnar.MaxRows))
	}
	if l.RowBytes < 1 || l.RowBytes > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("transcode: invalid limit of %d bytes a row: want 1 to %d", l.RowBytes, math.MaxInt32))
	}
	if l.Bytes < 1 {
		errs = append(errs, fmt.Errorf("transcode: invalid limit of %d bytes a batch: want at least 1", l.Bytes))
	}
	return errors.Join(errs...)
}

// Stats says what became of the rows of a payload.
type Stats struct {
	// Rows were there, Kept are in the batch, Rejected were left out because the category rejects rows that do not fit.
	Rows, Kept, Rejected int64
	// BadRows had a structure that could not be read. BadValues did not fit their column. Both count what was looked at: of a
	// row that the predicate ruled out the rest is not.
	BadRows, BadValues int64
	// Errors are values that the predicate could not compute, and took as null.
	Errors int64
	// Bytes is the length of the payload.
	Bytes int64
}

// Add adds up the figures of several payloads.
func (s *Stats) Add(o Stats) {
	s.Rows += o.Rows
	s.Kept += o.Kept
	s.Rejected += o.Rejected
	s.BadRows += o.BadRows
	s.BadValues += o.BadValues
	s.Errors += o.Errors
	s.Bytes += o.Bytes
}

// TooLarge is columnar.ErrTooLarge with what was too large.
func TooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", columnar.ErrTooLarge, fmt.Sprintf(format, args...))
}
