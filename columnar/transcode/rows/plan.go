package rows

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/vector"
)

// Plan is a compiled Spec. It is immutable.
type Plan struct {
	Schema *schema.Schema
	Limits Limits
	// defaults is passed to NewBuffer.
	defaults column.Defaults
	Rejects  bool // rows that do not fit are omitted
	// Columns that are produced only if needed, because of their cost.
	WantsError, WantsRest bool
	WantsMessage          bool // the message's time, key, attributes or payload are needed
	EarlyStop             bool

	Inputs       []Input       // columns read from rows, in the order of Schema.Columns()
	InputSchema  *arrow.Schema // of the inputs
	common       []int         // inputs that are built-in columns
	OutputSchema *arrow.Schema
	OutputInputs []int // the input of each output column
	ZoneInputs   []int // inputs reported to a zone builder
	Where        expr.Expr
	// Residual are the terms of Where that the format's reader leaves to the batch. WholeFilter and ResidualFilter are the filters
	// of Where and Residual, nil without terms.
	Residual                    []expr.Expr
	WholeFilter, ResidualFilter *vector.Filter
}

// Input is a column that is read because the output, the predicate, the zones, or the check of rows needs it.
type Input struct {
	Name   string
	Type   schema.Type
	Field  int          // in the schema, -1 for a built-in column
	Common CommonColumn // if Field is -1

	appendDefault func(*column.Buffer) // appends the field's default; nil if there is none
}

// CommonColumn is a built-in column of every category.
type CommonColumn uint8

// The built-in columns.
const (
	CommonTime CommonColumn = iota
	CommonKey
	CommonIndex
	CommonPayload
	CommonAttr
	CommonRest
	CommonError
	CommonRate
)

var commonColumns = map[string]CommonColumn{
	schema.ColumnTime: CommonTime, schema.ColumnKey: CommonKey, ColumnIndex: CommonIndex, schema.ColumnPayload: CommonPayload,
	schema.ColumnAttr: CommonAttr, schema.ColumnRest: CommonRest, schema.ColumnError: CommonError,
	schema.ColumnRate: CommonRate,
}

// NewPlan checks and compiles a spec. It calls defaults to parse the defaults of fields.
func NewPlan(spec *Spec, defaults column.Defaults) (*Plan, error) {
	if spec.Schema == nil {
		return nil, errors.New("transcode: a plan without a schema")
	}
	p := &Plan{Schema: spec.Schema, Limits: spec.Limits.withDefaults(), Where: spec.Where, EarlyStop: spec.EarlyStop, defaults: defaults}
	if err := p.Limits.validate(); err != nil {
		return nil, err
	}
	p.Rejects = spec.Schema.OnError == schema.OnErrorReject && spec.Schema.Version != 0
	needed := map[string]bool{}
	for _, name := range slices.Concat(spec.Columns, spec.Zones) {
		needed[name] = true
	}
	if spec.Where != nil {
		expr.Columns(spec.Where, func(c *expr.Column) { needed[c.Name] = true })
	}
	p.WantsError, p.WantsRest = needed[schema.ColumnError], needed[schema.ColumnRest]
	if p.WantsError || p.WantsRest || p.Rejects {
		for i := range spec.Schema.Fields {
			needed[spec.Schema.Fields[i].Name] = true
		}
	}
	if err := p.addInputs(needed); err != nil {
		return nil, err
	}
	p.Residual = expr.Conjuncts(p.Where)
	fields := make([]arrow.Field, len(spec.Columns))
	p.OutputInputs = make([]int, len(spec.Columns))
	for i, name := range spec.Columns {
		p.OutputInputs[i] = p.findInput(name)
		fields[i] = p.InputSchema.Field(p.OutputInputs[i])
	}
	p.OutputSchema = arrow.NewSchema(fields, nil)
	for _, name := range spec.Zones {
		p.ZoneInputs = append(p.ZoneInputs, p.findInput(name))
	}
	return p, nil
}

// NewColumn returns an empty column for an input.
func (p *Plan) NewColumn(in *Input) *column.Buffer {
	c := column.NewBuffer(&in.Type, in.Field < 0 || p.Schema.Fields[in.Field].Nullable, p.defaults)
	c.AppendDefault = in.appendDefault
	return c
}

// addInputs makes the inputs for the named columns.
func (p *Plan) addInputs(needed map[string]bool) error {
	columns := append(p.Schema.Columns(), schema.Column{Name: ColumnIndex, Type: schema.Type{Kind: schema.Int32}, Field: -1})
	var fields []arrow.Field
	for i := range columns {
		c := &columns[i]
		if !needed[c.Name] {
			continue
		}
		delete(needed, c.Name)
		own, known := commonColumns[c.Name]
		if c.Field < 0 && !known {
			return fmt.Errorf("transcode: only readers that have the pointer know the column %s: they make it of %s", c.Name, ColumnIndex)
		}
		if err := checkType(&c.Type); err != nil {
			return fmt.Errorf("transcode: column %q: %w", c.Name, err)
		}
		in := Input{Name: c.Name, Type: c.Type, Field: c.Field, Common: own}
		if c.Field < 0 {
			p.common = append(p.common, len(p.Inputs))
			p.WantsMessage = p.WantsMessage || own != CommonIndex && own != CommonRest && own != CommonError && own != CommonRate
		} else {
			in.appendDefault = p.defaults(&p.Schema.Fields[c.Field])
		}
		p.Inputs = append(p.Inputs, in)
		f := arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: true}
		switch c.Name {
		case ColumnIndex:
			f.Type, f.Nullable = arrow.PrimitiveTypes.Uint32, false
		case schema.ColumnTime:
			f.Nullable = false
		}
		fields = append(fields, f)
	}
	for name := range needed {
		return fmt.Errorf("transcode: unknown column %q", name)
	}
	p.InputSchema = arrow.NewSchema(fields, nil)
	return nil
}

// checkType rejects types that columns can't have.
func checkType(t *schema.Type) error {
	switch t.Kind {
	case schema.Bool, schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.String, schema.Binary, schema.Date, schema.Timestamp:
		return nil
	case schema.Decimal:
		if t.Precision < 1 || t.Precision > 38 || t.Scale < 0 || t.Scale > t.Precision {
			return fmt.Errorf("invalid type %s: want a precision of 1 to 38 and a scale of 0 to the precision", t)
		}
		return nil
	case schema.List, schema.Map:
		if t.Elem == nil {
			return fmt.Errorf("a %s without a type of its elements", t.Kind)
		}
		return checkType(t.Elem)
	case schema.Struct:
		for i := range t.Fields {
			if err := checkType(&t.Fields[i].Type); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("columns can't have the type %s", t.Kind)
	}
}

func (p *Plan) findInput(name string) int {
	return slices.IndexFunc(p.Inputs, func(in Input) bool { return in.Name == name })
}

// CompileFilters compiles the filters. The reader calls it after it has taken the terms that it decides itself.
func (p *Plan) CompileFilters() (err error) {
	if p.Where == nil {
		return nil
	}
	if p.WholeFilter, err = vector.CompileFilter(p.Where, p.InputSchema); err != nil {
		return fmt.Errorf("transcode: the predicate: %w", err)
	}
	switch len(p.Residual) {
	case 0:
	case 1:
		p.ResidualFilter, err = vector.CompileFilter(p.Residual[0], p.InputSchema)
	default:
		p.ResidualFilter, err = vector.CompileFilter(&expr.Call{Op: expr.And, Args: p.Residual, T: schema.Type{Kind: schema.Bool}}, p.InputSchema)
	}
	if err != nil {
		return fmt.Errorf("transcode: the predicate: %w", err)
	}
	return nil
}
