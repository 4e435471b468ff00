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
	columns := make([]arrow.Array, len(p.programs))
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, program := range p.programs {
		var err error
		if columns[i], err = program.Eval(batch, st); err != nil {
			return nil, fmt.Errorf("column %q: %w", p.schema.Field(i).Name, err)
		}
	}
	return array.NewRecordBatch(p.schema, columns, batch.NumRows()), nil
}
