package finish

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar"
	"scribe/columnar/expr"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/transcode"
	"scribe/columnar/vector"
	"scribe/internal/format/record"
)

// ErrView means that a batch is not a view of the query: it lacks a column, or a column has another type. The cause is an
// inconsistent server.
var ErrView = errors.New("finish: the batch is no view of the query")

// Meta holds the properties of a payload that only a reader knows.
type Meta struct {
	Shard     record.ShardID
	LSN       record.LSN
	Persisted int64 // Unix microseconds
	// Skip is the number of leading messages to omit because they were delivered before. Drop omits single messages that are not
	// rows: loss reports.
	Skip uint32
	Drop []uint32
}

// Stats counts the rows of payloads by outcome.
type Stats struct {
	// Rows counts all rows of the payloads, Kept those in the result (before GROUP BY and LIMIT), Rejected those omitted because a
	// value did not fit and the category rejects such rows.
	Rows, Kept, Rejected int64
	// BadRows counts unreadable rows, BadValues values that did not fit their column. Both count only what was read.
	BadRows, BadValues int64
	// Errors counts values that could not be computed and were treated as null.
	Errors int64
}

// Add adds the counts of other payloads.
func (s *Stats) Add(o Stats) {
	s.Rows += o.Rows
	s.Kept += o.Kept
	s.Rejected += o.Rejected
	s.BadRows += o.BadRows
	s.BadValues += o.BadValues
	s.Errors += o.Errors
}

// Finisher is a query compiled for one version of its category's schema.
type Finisher struct {
	plan       *plan.Plan
	transcoder *transcode.Transcoder
	// inputs are the plan's columns followed by the message index. Every form of a payload is converted to them.
	inputs *arrow.Schema
	// where is the filter of the whole predicate, rest of the part that only a reader can evaluate.
	where, rest *vector.Filter
	pushed, own expr.Expr // the parts of the predicate: the one that a read proxy can evaluate, and the rest
	// kept are the indices in inputs of the columns needed after the filter; the last one is the message index. keptSchema is their
	// schema.
	kept       []int
	keptSchema *arrow.Schema
	project    *vector.Projection // nil with GROUP BY, and for a predicate alone
	schema     *arrow.Schema
	// projected is the schema of what project makes: the outputs, and with ORDER BY of rows the values to order by.
	projected *arrow.Schema
}

// New compiles a plan.
func New(p *plan.Plan, limits transcode.Limits) (*Finisher, error) {
	f := &Finisher{plan: p}
	push := p.Pushdown()
	wanted := []string{transcode.ColumnIndex}
	fields := make([]arrow.Field, 0, len(p.Columns)+1)
	for i := range p.Columns {
		c := &p.Columns[i]
		fields = append(fields, arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: true})
		if !plan.AtConsumer(c.Name) {
			wanted = append(wanted, c.Name)
		}
	}
	f.inputs = arrow.NewSchema(append(fields, indexField), nil)
	var err error
	f.transcoder, err = transcode.New(transcode.Spec{Schema: p.Schema, Columns: wanted, Where: push, EarlyStop: p.EarlyStop, Limits: limits})
	if err != nil {
		return nil, err
	}
	if f.where, err = vector.CompileFilter(p.Where, f.inputs); err != nil {
		return nil, err
	}
	f.pushed, f.own = push, ownExpr(p.Where)
	if f.rest, err = vector.CompileFilter(f.own, f.inputs); err != nil {
		return nil, err
	}
	f.narrowBatch()
	return f, f.compileOutputs()
}

var indexField = arrow.Field{Name: transcode.ColumnIndex, Type: arrow.PrimitiveTypes.Uint32}

// ownExpr returns the part of a predicate that only a reader can evaluate, or nil if there is none.
func ownExpr(where expr.Expr) expr.Expr {
	var terms []expr.Expr
	for _, term := range expr.Conjuncts(where) {
		here := false
		expr.Columns(term, func(c *expr.Column) { here = here || plan.AtConsumer(c.Name) })
		if here {
			terms = append(terms, term)
		}
	}
	switch len(terms) {
	case 0:
		return nil
	case 1:
		return terms[0]
	default:
		return &expr.Call{Op: expr.And, Args: terms, T: schema.Type{Kind: schema.Bool}}
	}
}

// narrowBatch determines the columns needed after the predicate.
func (f *Finisher) narrowBatch() {
	needed := map[string]bool{transcode.ColumnIndex: true}
	note := func(e expr.Expr) {
		if e != nil {
			expr.Columns(e, func(c *expr.Column) { needed[c.Name] = true })
		}
	}
	if g := f.plan.Group; g != nil {
		for _, key := range g.Keys {
			note(key)
		}
		for i := range g.Aggregates {
			note(g.Aggregates[i].Arg)
			note(g.Aggregates[i].Filter)
		}
	} else {
		for i := range f.plan.Output {
			note(f.plan.Output[i].Expr)
		}
		for i := range f.plan.Order {
			note(f.plan.Order[i].Expr)
		}
	}
	var fields []arrow.Field
	for i, field := range f.inputs.Fields() {
		if needed[field.Name] {
			f.kept, fields = append(f.kept, i), append(fields, field)
		}
	}
	f.keptSchema = arrow.NewSchema(fields, nil)
}

// compileOutputs compiles the SELECT list.
func (f *Finisher) compileOutputs() error {
	outputs := slices.Clone(f.plan.Output)
	for i, o := range f.plan.Order {
		outputs = append(outputs, plan.Output{Name: "$o" + strconv.Itoa(i), Expr: o.Expr})
	}
	fields := make([]arrow.Field, len(outputs))
	for i, o := range outputs {
		t := *o.Expr.Type()
		if len(f.plan.Order) > 0 { // rows of many payloads become one batch: each has a dictionary of its own
			t.Dictionary = false
		}
		fields[i] = arrow.Field{Name: o.Name, Type: t.Arrow(), Nullable: true}
	}
	f.schema = arrow.NewSchema(fields[:len(f.plan.Output)], nil)
	f.projected = arrow.NewSchema(fields, nil)
	if f.plan.Group != nil || len(fields) == 0 {
		return nil // with groups the list is over them; a predicate has none
	}
	var err error
	f.project, err = vector.Project(outputs, f.keptSchema)
	return err
}

// Plan returns the compiled plan.
func (f *Finisher) Plan() *plan.Plan { return f.plan }

// Pushdown returns the part of the predicate that a read proxy can evaluate, or nil if there is none.
func (f *Finisher) Pushdown() expr.Expr { return f.pushed }

// Rest returns the part of the predicate that only a reader can evaluate, or nil if there is none.
func (f *Finisher) Rest() expr.Expr { return f.own }

// Schema returns the schema of the result. Every column is nullable.
func (f *Finisher) Schema() *arrow.Schema { return f.schema }

// Rows are the rows of a payload that satisfy a query.
type Rows struct {
	// Batch has the output columns, with ORDER BY of rows followed by the values to order by, or with GROUP BY the inputs of the groups. For
	// a predicate alone it has only the index. The caller releases it.
	Batch arrow.RecordBatch
	// Index is the payload index of the message of each row, in increasing order.
	Index []uint32
}

// Payload evaluates the query over a raw payload: frames, as record.Split takes them. The rows share no memory with it. Errors
// are those of transcode.Transcoder.
func (f *Finisher) Payload(frames []byte, m Meta, st *Stats) (*Rows, error) {
	batch, ts, err := f.transcoder.Transcode(frames, nil)
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	st.Add(Stats{Rows: ts.Rows, Rejected: ts.Rejected, BadRows: ts.BadRows, BadValues: ts.BadValues, Errors: ts.Errors})
	return f.finishRows(batch, f.rest, m, st)
}

// View evaluates the query over a view of a payload. exact means that its rows are exactly those for which the predicate is true,
// except for terms that only a reader can evaluate. The rows may share the memory of batch. The error matches [ErrView] if batch
// is not the expected view.
func (f *Finisher) View(batch arrow.RecordBatch, exact bool, m Meta, st *Stats) (*Rows, error) {
	where := f.where
	if exact {
		where = f.rest
	}
	return f.finishRows(batch, where, m, st)
}

// finishRows selects the rows and computes the outputs.
func (f *Finisher) finishRows(in arrow.RecordBatch, where *vector.Filter, m Meta, st *Stats) (*Rows, error) {
	work, err := f.inputBatch(in, m)
	if err != nil {
		return nil, err
	}
	defer work.Release()
	var vs vector.Stats
	chosen, err := where.Select(work, &vs)
	if err != nil {
		return nil, err
	}
	narrow := pickColumns(work, f.kept, f.keptSchema)
	defer narrow.Release()
	kept := chosen.Take(narrow)
	defer kept.Release()
	last := kept.Column(int(kept.NumCols()) - 1)
	index, ok := last.(*array.Uint32)
	if !ok {
		return nil, fmt.Errorf("%w: %s is %s", ErrView, transcode.ColumnIndex, last.DataType())
	}
	rows := &Rows{Index: index.Uint32Values()}
	if f.project == nil {
		kept.Retain()
		rows.Batch = kept
	} else if rows.Batch, err = projectBatch(f.project, kept, f.projected, &vs); err != nil {
		return nil, err
	}
	st.Kept += rows.Batch.NumRows()
	st.Errors += int64(vs.Errors)
	return rows, nil
}

// projectBatch computes the outputs of selected rows, or of groups, as columns of a schema.
func projectBatch(p *vector.Projection, work arrow.RecordBatch, s *arrow.Schema, vs *vector.Stats) (arrow.RecordBatch, error) {
	out, err := p.Eval(work, vs)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	return conformBatch(out, s)
}

// pickColumns returns the given columns of a batch.
func pickColumns(batch arrow.RecordBatch, columns []int, s *arrow.Schema) arrow.RecordBatch {
	picked := make([]arrow.Array, len(columns))
	for i, c := range columns {
		picked[i] = batch.Column(c)
	}
	return array.NewRecordBatch(s, picked, batch.NumRows())
}

// inputBatch converts a batch to the columns of f.inputs. It adds the pointer's columns, drops unneeded columns, and removes rows
// that were delivered before.
func (f *Finisher) inputBatch(in arrow.RecordBatch, m Meta) (arrow.RecordBatch, error) {
	at := in.Schema().FieldIndices(transcode.ColumnIndex)
	if len(at) != 1 {
		return nil, fmt.Errorf("%w: it has no column %s", ErrView, transcode.ColumnIndex)
	}
	index, ok := in.Column(at[0]).(*array.Uint32)
	if !ok || index.NullN() > 0 {
		return nil, fmt.Errorf("%w: its column %s is %s", ErrView, transcode.ColumnIndex, in.Column(at[0]).DataType())
	}
	messages := index.Uint32Values()
	if !slices.IsSorted(messages) {
		return nil, fmt.Errorf("%w: its rows are not in the order of the messages", ErrView)
	}
	batch, err := vector.MakeBatch(f.inputs, in.NumRows(), func(i int) (arrow.Array, error) {
		field := f.inputs.Field(i)
		if column := pointerColumn(field.Name, messages, m); column != nil {
			return column, nil
		}
		at := in.Schema().FieldIndices(field.Name)
		if len(at) != 1 {
			return nil, fmt.Errorf("%w: it has no column %q", ErrView, field.Name)
		}
		column, err := conformedArray(in.Column(at[0]), field.Type)
		if err != nil {
			return nil, fmt.Errorf("%w: column %q: %w", ErrView, field.Name, err)
		}
		return column, nil
	})
	if err != nil {
		return nil, err
	}
	defer batch.Release()
	return cutBatch(batch, messages, m), nil
}

// pointerColumn returns a column with values of the pointer, or nil for any other column.
func pointerColumn(name string, index []uint32, m Meta) arrow.Array {
	switch name {
	case schema.ColumnPersisted:
		return repeatedValues(arrow.FixedWidthTypes.Timestamp_us, len(index), uint64(m.Persisted)) //nolint:gosec // its bits
	case schema.ColumnShard:
		return repeatedValues(arrow.PrimitiveTypes.Uint64, len(index), uint64(m.Shard))
	case schema.ColumnOffset:
		values := make([]uint64, len(index))
		for i, n := range index {
			values[i] = columnar.Offset(m.LSN, int(n))
		}
		return fixedColumn(arrow.PrimitiveTypes.Uint64, values)
	default:
		return nil
	}
}
