package aggregate

import (
	"fmt"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/arrow/util"

	"scribe/columnar/expr"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// Sorter keeps the first rows in the order of ORDER BY. It is not safe for concurrent use.
type Sorter struct {
	order  []orderElement // the values to order by are the last columns of the rows
	schema *arrow.Schema
	// keys is the schema of the values to order by. Its names are its own: an output may have any name.
	keys   *arrow.Schema
	keep   int   // rows; or MaxSorted, above which all is an error
	all    bool  // every row is kept
	limit  int64 // bytes
	failed error

	held  []arrow.RecordBatch
	rows  int
	bytes int64
}

// heldRows is the least number of rows in addition to those that are kept that a Sorter gathers before it sorts.
const heldRows = 16 << 10

// keptBytes is how much of the limit the kept rows may take.
func (s *Sorter) keptBytes() int64 { return s.limit / 2 }

// heldBytes is how much a Sorter gathers before it sorts, which copies it once. It is more than what is kept: rows that take nearly all that
// they may would else be sorted again with each batch.
func (s *Sorter) heldBytes() int64 { return s.limit / 4 * 3 }

// NewSorter returns a Sorter of batches of a schema, whose last columns are the values of order. It keeps the first n rows in order, or, if n is
// negative, all, which must not be more than plan.MaxSorted. The rows that are kept may take half of the limit's bytes.
func NewSorter(order []plan.Order, in *arrow.Schema, n int64, limits Limits) (*Sorter, error) {
	limits, err := limits.orDefault()
	if err != nil {
		return nil, err
	}
	s := &Sorter{keep: plan.MaxSorted, all: n < 0, limit: limits.Bytes}
	if !s.all {
		s.keep = int(min(n, plan.MaxSorted))
	}
	first := in.NumFields() - len(order)
	if first < 0 || len(order) == 0 {
		return nil, fmt.Errorf("aggregate: %d columns to order by among %d", len(order), in.NumFields())
	}
	fields := make([]arrow.Field, len(order))
	for i := range order {
		fields[i] = in.Field(first + i)
		fields[i].Name = strconv.Itoa(i)
	}
	s.keys = arrow.NewSchema(fields, nil)
	for i, o := range order {
		t := *o.Expr.Type()
		t.Dictionary = false
		prog, err := vector.Compile(&expr.Column{Name: fields[i].Name, T: t}, s.keys)
		if err != nil {
			return nil, fmt.Errorf("aggregate: ORDER BY: %w", err)
		}
		if _, ok := classOf(t.Kind); !ok {
			return nil, fmt.Errorf("aggregate: ORDER BY %d is of type %s: rows are ordered by scalars only", i+1, &t)
		}
		s.order = append(s.order, orderElement{prog: prog, kind: t.Kind, plan: o})
	}
	s.schema = arrow.NewSchema(in.Fields()[:first], nil)
	return s, nil
}

// Add adds rows, which it may keep until [Sorter.Close]. After an error, usually [ErrLimit], every later call returns the same error.
func (s *Sorter) Add(b arrow.RecordBatch) error {
	if s.failed == nil {
		s.failed = s.addRows(b)
	}
	return s.failed
}

func (s *Sorter) addRows(b arrow.RecordBatch) error {
	if b.NumRows() == 0 || s.keep == 0 {
		return nil
	}
	if int(b.NumRows()) > s.keep && !s.all { // most of them can't be among the first
		first, err := s.firstRows(b)
		if err != nil {
			return err
		}
		defer first.Release()
		b = first
	}
	b.Retain()
	s.held, s.rows, s.bytes = append(s.held, b), s.rows+int(b.NumRows()), s.bytes+util.TotalRecordSize(b)
	if s.all && s.rows > s.keep {
		return fmt.Errorf("%w: more than %d rows to sort: add a LIMIT, or narrow the WHERE or the range of time", ErrLimit, s.keep)
	}
	if s.rows > s.keep+max(s.keep, heldRows) || s.bytes > s.heldBytes() {
		return s.compact()
	}
	return nil
}

// compact makes one batch of the rows that are kept, and checks their bytes.
func (s *Sorter) compact() error {
	if len(s.held) == 0 {
		return nil
	}
	all, err := vector.ConcatBatches(s.held)
	if err != nil {
		return err
	}
	defer all.Release()
	s.releaseRows()
	first, err := s.firstRows(all)
	if err != nil {
		return err
	}
	s.held, s.rows, s.bytes = append(s.held, first), int(first.NumRows()), util.TotalRecordSize(first)
	if s.bytes > s.keptBytes() {
		return fmt.Errorf("%w: %d rows to sort take %d bytes, %d are allowed, a quarter of the query's memory: name fewer columns, lower the LIMIT, or raise the limit of memory", ErrLimit, s.rows, s.bytes, s.keptBytes())
	}
	return nil
}

// firstRows returns the rows of a batch that are kept, in order. The caller releases it.
func (s *Sorter) firstRows(b arrow.RecordBatch) (arrow.RecordBatch, error) {
	var vs vector.Stats
	places := make([]int, b.NumRows())
	for i := range places {
		places[i] = i
	}
	keys := array.NewRecordBatch(s.keys, b.Columns()[int(b.NumCols())-len(s.order):], b.NumRows())
	defer keys.Release()
	if err := sortPlaces(s.order, keys, places, &vs); err != nil {
		return nil, err
	}
	taken := make([]int32, min(len(places), s.keep))
	for i := range taken {
		taken[i] = int32(places[i])
	}
	return vector.TakeRows(b, taken), nil
}

// Result returns the kept rows in order, without the values to order by. Rows that ORDER BY does not distinguish keep the order in which they
// were added. The caller releases it.
func (s *Sorter) Result() (arrow.RecordBatch, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if s.failed = s.compact(); s.failed != nil {
		return nil, s.failed
	}
	if len(s.held) == 0 {
		b := array.NewRecordBuilder(memory.DefaultAllocator, s.schema)
		defer b.Release()
		return b.NewRecordBatch(), nil
	}
	rows := s.held[0]
	return array.NewRecordBatch(s.schema, rows.Columns()[:s.schema.NumFields()], rows.NumRows()), nil
}

// Close releases the rows.
func (s *Sorter) Close() { s.releaseRows() }

func (s *Sorter) releaseRows() {
	for _, b := range s.held {
		b.Release()
	}
	s.held, s.rows, s.bytes = nil, 0, 0
}

// DistinctRows returns a batch's rows without those that are equal to one before. Its columns are scalars of the given kinds. The caller
// releases it.
func DistinctRows(b arrow.RecordBatch, kinds []schema.Kind, limits Limits) (arrow.RecordBatch, error) {
	limits, err := limits.orDefault()
	if err != nil {
		return nil, err
	}
	columns := make([]*columnValues, b.NumCols())
	classes := make([]valueClass, b.NumCols())
	for i, a := range b.Columns() {
		columns[i] = &columnValues{}
		columns[i].loadRows(kinds[i], a, 0, a.Len())
		if classes[i] = columns[i].class; classes[i] == 0 {
			return nil, fmt.Errorf("aggregate: a column of type %s: rows are compared by scalars only", a.DataType())
		}
	}
	n := int(b.NumRows())
	numbers, fresh := make([]uint32, n), make([]bool, n)
	if err := newGroupTable(classes, limits.Groups).findRows(columns, n, nil, numbers, fresh); err != nil {
		return nil, err
	}
	places := make([]int32, 0, n)
	for i, first := range fresh {
		if first {
			places = append(places, int32(i))
		}
	}
	return vector.TakeRows(b, places), nil
}
