package vector

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// Stats counts events of evaluations. The zero value is ready to use. It is not safe for concurrent use.
type Stats struct {
	// Errors counts rows in which an operator had no result, such as a division by zero or a text that is not a number. Their value
	// is null.
	Errors int64
}

// Program is an expression compiled for batches of one schema. It is immutable and safe for concurrent use.
type Program struct {
	root    exprNode
	columns []programColumn
	t       schema.Type
	arrow   arrow.DataType
	bare    int // index of the batch's column if the expression is only that column, else -1
	budget  memoryBudget
}

// Compile compiles an expression for batches with the columns of in. They must contain the columns that the expression names,
// each with the type that it was bound to. Texts may be dictionaries.
func Compile(e expr.Expr, in *arrow.Schema) (*Program, error) {
	if e == nil {
		return nil, errors.New("vector: no expression")
	}
	c := &compiler{in: in, byName: map[string]int{}}
	n, err := c.compileExpr(e)
	if err != nil {
		return nil, err
	}
	p := &Program{root: c.encodedNode(n), columns: c.columns, t: *e.Type(), bare: -1, budget: defaultBudget}
	p.arrow = p.t.Arrow()
	if p.t.Kind == schema.String {
		p.arrow = arrow.BinaryTypes.String
	}
	if col, ok := n.exprNode.(columnNode); ok {
		p.bare = c.columns[col.index].index
		p.arrow = in.Field(p.bare).Type
	}
	return p, nil
}

// Type returns the Arrow type of Eval's result. If the expression is only a column, it is the column's type in the batch;
// otherwise it is the expression's type, with plain texts.
func (p *Program) Type() arrow.DataType { return p.arrow }

// Eval returns the expression's value for each row of a batch. The array shares memory with the batch only if the result is an
// unchanged column. The caller releases it. st may be nil. Errors are ErrTooLarge, or that the batch does not have the schema.
func (p *Program) Eval(batch arrow.RecordBatch, st *Stats) (arrow.Array, error) {
	if err := p.checkBatch(batch); err != nil {
		return nil, err
	}
	if p.bare >= 0 {
		a := batch.Column(p.bare)
		a.Retain()
		return a, nil
	}
	var parts []arrow.Array
	defer func() {
		for _, a := range parts {
			a.Release()
		}
	}()
	size := 0
	err := p.evalInPieces(batch, func(ev *programRun, _ int) error {
		v := spreadConstant(ev.scratchMemory, p.root.evalRows(ev, nil), ev.rows)
		n := 0
		if v.kind == schema.String || v.kind == schema.Binary {
			n = v.exportedBytes()
		}
		if !ev.reserveBytes(n) {
			return nil // the caller checks ev's error
		}
		if size += n; size > maxOutput {
			return tooLarge(int(batch.NumRows()), maxOutput)
		}
		ev.countErrors(st)
		parts = append(parts, exportVec(v, &p.t))
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(parts) == 1:
		parts[0].Retain()
		return parts[0], nil
	}
	return array.Concatenate(parts, memory.DefaultAllocator)
}

// evalInPieces evaluates a batch at once. If that takes too much memory, it evaluates pieces with fewer rows, one after the
// other. one evaluates a piece that begins at row from. If ev has an error afterwards, the piece may be evaluated again. An error
// returned by one ends the evaluation.
func (p *Program) evalInPieces(batch arrow.RecordBatch, one func(ev *programRun, from int) error) error {
	n, left := int(batch.NumRows()), p.budget.total
	piece := n
	for at := 0; ; {
		rows := min(piece, n-at)
		fits, err := p.evalPiece(batch, at, rows, p.budget.piece, &left, one)
		if !fits && err == nil && rows <= 1 && left > 0 {
			fits, err = p.evalHeavyRow(batch, at, rows, &left, one)
		}
		switch {
		case err != nil:
			return err
		case fits:
			if at += rows; at >= n {
				return nil
			}
		case left <= 0:
			return tooLarge(n, p.budget.total)
		case rows <= 1:
			return tooLarge(rows, p.budget.row)
		default:
			piece = (rows + 1) / 2
		}
	}
}

// evalHeavyRow evaluates a row that takes more memory than a piece may have, once it gets a slot in heavy.
func (p *Program) evalHeavyRow(batch arrow.RecordBatch, at, rows int, left *int, one func(ev *programRun, from int) error) (fits bool, err error) {
	heavy <- struct{}{}
	defer func() { <-heavy }()
	return p.evalPiece(batch, at, rows, p.budget.row, left, one)
}

// evalPiece evaluates some rows of a batch with at most limit bytes, and at most what is left for all pieces. fits reports
// whether that was enough.
func (p *Program) evalPiece(batch arrow.RecordBatch, at, rows, limit int, left *int, one func(ev *programRun, from int) error) (fits bool, err error) {
	part := batch
	if rows < int(batch.NumRows()) {
		part = batch.NewSlice(int64(at), int64(at+rows))
		defer part.Release()
	}
	ev := p.beginEval(part, min(limit, *left))
	defer ev.free()
	err = one(ev, at)
	*left -= ev.taken
	return ev.err == nil, err
}

// checkBatch compares the columns that the program reads with the schema that it was compiled for.
func (p *Program) checkBatch(batch arrow.RecordBatch) error {
	for i := range p.columns {
		c := &p.columns[i]
		if int64(c.index) >= batch.NumCols() || batch.ColumnName(c.index) != c.name || !holdsType(batch.Column(c.index).DataType(), &c.t) {
			return fmt.Errorf("vector: the batch is of another schema than the program was compiled for: column %d is not %q of the type %s",
				c.index, c.name, &c.t)
		}
	}
	return nil
}

func (p *Program) beginEval(batch arrow.RecordBatch, limit int) *programRun {
	return &programRun{
		scratchMemory: newScratch(limit),
		rows:          int(batch.NumRows()),
		columns:       p.columns,
		batch:         batch,
		loaded:        make([]*columnVec, len(p.columns)),
	}
}

func (ev *programRun) countErrors(st *Stats) {
	if st != nil && ev.errs != nil {
		st.Errors += int64(ev.errs.count())
	}
}

// Filter is a condition compiled for batches of one schema. It is immutable.
type Filter struct{ p *Program }

// CompileFilter compiles a condition, like Compile. A nil condition selects every row.
func CompileFilter(e expr.Expr, in *arrow.Schema) (*Filter, error) {
	if e == nil {
		return &Filter{}, nil
	}
	if k := e.Type().Kind; k != schema.Bool {
		return nil, fmt.Errorf("vector: a condition of the type %s", e.Type())
	}
	p, err := Compile(e, in)
	if err != nil {
		return nil, err
	}
	return &Filter{p}, nil
}

// Select returns the rows of a batch for which the condition is true: neither false nor null. Errors are those of Program.Eval.
func (f *Filter) Select(batch arrow.RecordBatch, st *Stats) (*Selection, error) {
	n := int(batch.NumRows())
	if f.p == nil {
		s := &Selection{rows: n, count: n, bits: make(bitmap, wordsFor(n))}
		s.bits.fill(n)
		return s, nil
	}
	if err := f.p.checkBatch(batch); err != nil {
		return nil, err
	}
	s := &Selection{rows: n, bits: make(bitmap, wordsFor(n))}
	err := f.p.evalInPieces(batch, func(ev *programRun, from int) error {
		is := trueRows(ev, f.p.root, nil)
		if !ev.reserveBytes(0) {
			return nil // the caller checks ev's error
		}
		ev.countErrors(st)
		if ev.rows == n {
			copy(s.bits, is)
			return nil
		}
		for i := range eachRow(is, ev.rows) {
			s.bits.set(from + i)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.count = s.bits.count()
	return s, nil
}

// Selection is a set of a batch's rows.
type Selection struct {
	rows, count int
	bits        bitmap
}

// SelectRows returns the rows that keep reports true for.
func SelectRows(rows int, keep func(i int) bool) *Selection {
	s := &Selection{rows: rows, bits: make(bitmap, wordsFor(rows))}
	for i := range rows {
		if keep(i) {
			s.bits.set(i)
			s.count++
		}
	}
	return s
}

// Count returns the number of selected rows.
func (s *Selection) Count() int { return s.count }

// Rows returns the number of rows in the batch.
func (s *Selection) Rows() int { return s.rows }

// Has reports whether a row is selected.
func (s *Selection) Has(i int) bool { return s.bits.get(i) }

// Limit keeps the first n selected rows, or all if there are fewer.
func (s *Selection) Limit(n int) {
	if n >= s.count {
		return
	}
	left := n
	for i := range eachRow(s.bits, s.rows) {
		if left--; left < 0 {
			s.bits.clear(i)
		}
	}
	s.count = max(n, 0)
}

// Take returns the selected rows of the batch that the selection was made from, in order. If all rows are selected, it returns
// the batch itself, retained; otherwise it shares no memory with the batch except dictionaries. The caller releases it.
func (s *Selection) Take(batch arrow.RecordBatch) arrow.RecordBatch {
	if s.count == s.rows {
		batch.Retain()
		return batch
	}
	places := make([]int32, 0, s.count)
	for i := range eachRow(s.bits, s.rows) {
		places = append(places, int32(i))
	}
	return TakeRows(batch, places)
}
