package rows

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"scribe/columnar"
	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// ColumnIndex is a hidden column: the message's index in the payload, as uint32. Batches of a read proxy have it in place of the
// three columns that only a reader with the pointer knows. All rows of a message have the same index.
const ColumnIndex = "_index"

// Spec describes the batch to make.
type Spec struct {
	Schema *schema.Schema
	// Columns are the batch's columns, in order. Allowed are declared columns, built-in columns except those that only a pointer
	// knows (_persisted, _shard, _offset), and [ColumnIndex]. Without columns the batch only counts rows.
	Columns []string
	// Where keeps the rows for which it is true; nil keeps all. It may name any column that Columns may name.
	Where expr.Expr
	// EarlyStop allows skipping the rest of a row once Where can't become true. It is valid for predicates that are not true if
	// every declared column is null and that don't name _error or _rest, and for categories that reject rows.
	EarlyStop bool
	// Zones are the columns whose values, in all rows, kept or not, are reported to the builder passed to Transcode.
	Zones  []string
	Limits Limits
}

// Limits bound the cost of a payload. A zero field means its default.
type Limits struct {
	// Rows is the maximum number of rows of one batch, including rows that are not kept. Default and maximum: columnar.MaxRows.
	Rows int
	// RowBytes is the maximum length of a row. A longer row does not fit: it is an error row. Default: 16 MiB.
	RowBytes int
	// Bytes is the maximum size of the buffers of one batch. Default: 1 GiB. One column's values have at most 2 GiB regardless.
	Bytes int64
}

// Default limits.
const (
	DefaultRowBytes = 16 << 20
	DefaultBytes    = 1 << 30
)

// withDefaults replaces zero fields by their defaults.
func (l Limits) withDefaults() Limits {
	return Limits{Rows: cmp.Or(l.Rows, columnar.MaxRows), RowBytes: cmp.Or(l.RowBytes, DefaultRowBytes), Bytes: cmp.Or(l.Bytes, DefaultBytes)}
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

// Stats counts the rows of a payload by outcome.
type Stats struct {
	// Rows counts all rows, Kept those in the batch, Rejected those omitted because the category rejects rows that do not fit.
	Rows, Kept, Rejected int64
	// BadRows counts rows with unreadable structure, BadValues values that did not fit their column. Both count only what was read:
	// the rest of a row that the predicate excluded is not.
	BadRows, BadValues int64
	// Errors counts values that the predicate could not compute and treated as null.
	Errors int64
	// Bytes is the length of the payload.
	Bytes int64
}

// Add adds the counts of another payload.
func (s *Stats) Add(o Stats) {
	s.Rows += o.Rows
	s.Kept += o.Kept
	s.Rejected += o.Rejected
	s.BadRows += o.BadRows
	s.BadValues += o.BadValues
	s.Errors += o.Errors
	s.Bytes += o.Bytes
}

// TooLarge returns columnar.ErrTooLarge with a description.
func TooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", columnar.ErrTooLarge, fmt.Sprintf(format, args...))
}
