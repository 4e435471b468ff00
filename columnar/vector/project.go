package vector

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/expr"
)

// Output is a column of a result.
type Output struct {
	Name string
	Expr expr.Expr
}

// Projection computes the columns of a result from those of a batch. It is immutable.
type Projection struct {
	programs []*Program
	schema   *arrow.Schema
}

// Project compiles the columns of a result, like Compile.
func Project(outputs []Output, in *arrow.Schema) (*Projection, error) {
	p := &Projection{programs: make([]*Program, len(outputs))}
	fields := make([]arrow.Field, len(outputs))
	for i, o := range outputs {
		program, err := Compile(o.Expr, in)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", o.Name, err)
		}
		p.programs[i] = program
		fields[i] = arrow.Field{Name: o.Name, Type: program.Type(), Nullable: true}
	}
	p.schema = arrow.NewSchema(fields, nil)
	return p, nil
}

// Schema returns the schema of the batches that Eval returns.
func (p *Projection) Schema() *arrow.Schema { return p.schema }

// Eval returns the result columns for each row of a batch, as Program.Eval does. The caller releases the batch.
func (p *Projection) Eval(batch arrow.RecordBatch, st *Stats) (arrow.RecordBatch, error) {
	return MakeBatch(p.schema, batch.NumRows(), func(i int) (arrow.Array, error) {
		column, err := p.programs[i].Eval(batch, st)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", p.schema.Field(i).Name, err)
		}
		return column, nil
	})
}

// MakeBatch makes a batch of the columns that column returns for each field of the schema, and releases them. The caller releases
// the batch.
func MakeBatch(s *arrow.Schema, rows int64, column func(i int) (arrow.Array, error)) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, 0, s.NumFields())
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i := range s.NumFields() {
		c, err := column(i)
		if err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return array.NewRecordBatch(s, columns, rows), nil
}
