package transcode

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// plan is what New makes of a Spec. It does not change afterwards.
type plan struct {
	schema  *schema.Schema
	limits  Limits
	rejects bool // rows that do not fit are left out
	// Some columns cost what others don't.
	wantsError, wantsRest bool
	wantsMessage          bool // its time, key, attributes or payload
	earlyStop             bool

	inputs []input       // what is read of rows, in the order of Schema.Columns()
	input  *arrow.Schema // of the inputs
	own    []int         // inputs that are columns that every category has
	fields []field       // by schema.Fields
	output *arrow.Schema
	from   []int // by column of the output, its input
	zones  []int // inputs that are reported to a zone builder
	where  expr.Expr
	// residual are the terms of where that the reader of the format leaves to the batch; whole and rest are filters of where and of residual, nil without
	// terms.
	residual    []expr.Expr
	whole, rest *vector.Filter
}

// input is a column that is read: because it is asked for, or the predicate needs it, or the zones, or the check of rows.
type input struct {
	name  string
	typ   schema.Type
	field int       // in the schema, -1 for the columns that every category has
	own   ownColumn // when field is -1
}

// field is what is known of a declared field.
type field struct {
	nullable bool
	fallback func(*column) // appends the default; nil without one
}

// ownColumn is a column that every category has.
type ownColumn uint8

const (
	ownTime ownColumn = iota
	ownKey
	ownIndex
	ownPayload
	ownAttr
	ownRest
	ownError
)

var ownColumns = map[string]ownColumn{
	schema.ColumnTime: ownTime, schema.ColumnKey: ownKey, ColumnIndex: ownIndex, schema.ColumnPayload: ownPayload,
	schema.ColumnAttr: ownAttr, schema.ColumnRest: ownRest, schema.ColumnError: ownError,
}

func newPlan(spec *Spec) (*plan, error) {
	if spec.Schema == nil {
		return nil, errors.New("transcode: a plan without a schema")
	}
	p := &plan{schema: spec.Schema, limits: spec.Limits.withDefaults(), where: spec.Where, earlyStop: spec.EarlyStop}
	if err := p.limits.validate(); err != nil {
		return nil, err
	}
	p.rejects = spec.Schema.OnError == schema.OnErrorReject && spec.Schema.Version != 0
	needed := map[string]bool{}
	for _, name := range slices.Concat(spec.Columns, spec.Zones) {
		needed[name] = true
	}
	if spec.Where != nil {
		expr.Columns(spec.Where, func(c *expr.Column) { needed[c.Name] = true })
	}
	p.wantsError, p.wantsRest = needed[schema.ColumnError], needed[schema.ColumnRest]
	if p.wantsError || p.wantsRest || p.rejects {
		for i := range spec.Schema.Fields {
			needed[spec.Schema.Fields[i].Name] = true
		}
	}
	if err := p.addInputs(needed); err != nil {
		return nil, err
	}
	p.addFields()
	p.residual = expr.Conjuncts(p.where)
	fields := make([]arrow.Field, len(spec.Columns))
	p.from = make([]int, len(spec.Columns))
	for i, name := range spec.Columns {
		p.from[i] = p.find(name)
		fields[i] = p.input.Field(p.from[i])
	}
	p.output = arrow.NewSchema(fields, nil)
	for _, name := range spec.Zones {
		p.zones = append(p.zones, p.find(name))
	}
	return p, nil
}

// addInputs makes the inputs of the names of columns.
func (p *plan) addInputs(needed map[string]bool) error {
	columns := append(p.schema.Columns(), schema.Column{Name: ColumnIndex, Type: schema.Type{Kind: schema.Int32}, Field: -1})
	var fields []arrow.Field
	for i := range columns {
		c := &columns[i]
		if !needed[c.Name] {
			continue
		}
		delete(needed, c.Name)
		own, known := ownColumns[c.Name]
		if c.Field < 0 && !known {
			return fmt.Errorf("transcode: the column %s is known to readers that have the pointer only; they make it of %s", c.Name, ColumnIndex)
		}
		if err := carried(&c.Type); err != nil {
			return fmt.Errorf("transcode: column %q: %w", c.Name, err)
		}
		if c.Field < 0 {
			p.own = append(p.own, len(p.inputs))
			p.wantsMessage = p.wantsMessage || own != ownIndex && own != ownRest && own != ownError
		}
		p.inputs = append(p.inputs, input{name: c.Name, typ: c.Type, field: c.Field, own: own})
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
		return fmt.Errorf("transcode: there is no column %q", name)
	}
	p.input = arrow.NewSchema(fields, nil)
	return nil
}

// carried refuses the types that columns can't have.
func carried(t *schema.Type) error {
	switch t.Kind {
	case schema.Bool, schema.Int32, schema.Int64, schema.Uint64, schema.Float64, schema.String, schema.Binary, schema.Date, schema.Timestamp:
		return nil
	case schema.Decimal:
		if t.Precision < 1 || t.Precision > 38 || t.Scale < 0 || t.Scale > t.Precision {
			return fmt.Errorf("%s: the precision is 1 to 38, the scale 0 to the precision", t)
		}
		return nil
	case schema.List, schema.Map:
		if t.Elem == nil {
			return fmt.Errorf("a %s without a type of its elements", t.Kind)
		}
		return carried(t.Elem)
	case schema.Struct:
		for i := range t.Fields {
			if err := carried(&t.Fields[i].Type); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("columns can't have the type %s", t.Kind)
	}
}

func (p *plan) find(name string) int {
	return slices.IndexFunc(p.inputs, func(in input) bool { return in.name == name })
}

// addFields prepares the defaults.
func (p *plan) addFields() {
	p.fields = make([]field, len(p.schema.Fields))
	for i := range p.schema.Fields {
		f := &p.schema.Fields[i]
		p.fields[i].nullable = f.Nullable
		p.fields[i].fallback = fallbackOf(f)
	}
}

// fallbackOf returns what appends a field's default; nil if there is none, or one that does not fit.
func fallbackOf(f *schema.Field) func(*column) {
	if f.Default == "" {
		return nil
	}
	one := newColumn(&f.Type, true)
	text := []byte(f.Default)
	if why := appendJSON(one, text); why != "" || one.nulls > 0 {
		return nil
	}
	switch f.Type.Kind {
	case schema.Bool:
		return func(c *column) { c.appendBool(one.bits[0]&1 != 0) }
	case schema.Int32, schema.Date:
		return func(c *column) { c.appendInt32(one.i32[0]) }
	case schema.Int64, schema.Uint64, schema.Timestamp:
		return func(c *column) { c.appendInt64(one.i64[0]) }
	case schema.Float64:
		return func(c *column) { c.appendFloat64(one.f64[0]) }
	case schema.Decimal:
		return func(c *column) { c.appendDecimal(one.dec[0]) }
	case schema.String, schema.Binary:
		value := one.values
		if one.dict != nil {
			value = one.dict.values
		}
		return func(c *column) { c.appendString(value) }
	default:
		return func(c *column) { appendJSON(c, text) }
	}
}

// compileFilters is called when the reader has taken what it decides itself.
func (p *plan) compileFilters() (err error) {
	if p.where == nil {
		return nil
	}
	if p.whole, err = vector.CompileFilter(p.where, p.input); err != nil {
		return fmt.Errorf("transcode: the predicate: %w", err)
	}
	switch len(p.residual) {
	case 0:
	case 1:
		p.rest, err = vector.CompileFilter(p.residual[0], p.input)
	default:
		p.rest, err = vector.CompileFilter(&expr.Call{Op: expr.And, Args: p.residual, T: schema.Type{Kind: schema.Bool}}, p.input)
	}
	if err != nil {
		return fmt.Errorf("transcode: the predicate: %w", err)
	}
	return nil
}
