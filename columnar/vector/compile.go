package vector

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// compiler turns expressions over the columns of a batch into nodes.
type compiler struct {
	in      *arrow.Schema
	columns []programColumn
	byName  map[string]int // index in columns
}

// compiledNode is a node with its compile-time properties.
type compiledNode struct {
	exprNode
	cost int // approximate cost per row; 1 is a comparison of numbers
	// source is the only column that the expression reads. It is -1 if there are several and -2 if there are none.
	source int
}

const (
	manySources = -1
	noSource    = -2
)

func (c *compiler) compileExpr(e expr.Expr) (compiledNode, error) {
	switch e := e.(type) {
	case *expr.Column:
		i, err := c.compileColumn(e)
		return compiledNode{columnNode{i}, 0, i}, err
	case *expr.Literal:
		v, err := constantVec(e)
		return compiledNode{constantNode{v}, 0, noSource}, err
	case *expr.Call:
		return c.compileCall(e)
	}
	return compiledNode{}, fmt.Errorf("vector: an expression of an unknown kind: %T", e)
}

// compileColumn finds a column of the batch, which must have the type that the expression was bound to.
func (c *compiler) compileColumn(e *expr.Column) (int, error) {
	if i, ok := c.byName[e.Name]; ok {
		if !c.columns[i].t.Equal(&e.T) {
			return 0, fmt.Errorf("vector: column %q is %s and %s in one expression", e.Name, &c.columns[i].t, &e.T)
		}
		return i, nil
	}
	at := c.in.FieldIndices(e.Name)
	if len(at) != 1 {
		return 0, fmt.Errorf("vector: the batch has %d columns named %q, the expression reads one", len(at), e.Name)
	}
	if dt := c.in.Field(at[0]).Type; !holdsType(dt, &e.T) {
		return 0, fmt.Errorf("vector: column %q is %s in the batch, the expression reads %s", e.Name, dt, &e.T)
	}
	c.columns = append(c.columns, programColumn{e.Name, at[0], e.T})
	c.byName[e.Name] = len(c.columns) - 1
	return len(c.columns) - 1, nil
}

// holdsType reports whether an Arrow type stores values of t. It ignores element names and nullability.
func holdsType(dt arrow.DataType, t *schema.Type) bool {
	switch t.Kind {
	case schema.String:
		if d, ok := dt.(*arrow.DictionaryType); ok {
			return d.IndexType.ID() == arrow.INT32 && d.ValueType.ID() == arrow.STRING
		}
		return dt.ID() == arrow.STRING
	case schema.List:
		l, ok := dt.(*arrow.ListType)
		return ok && holdsType(l.Elem(), t.Elem)
	case schema.Map:
		m, ok := dt.(*arrow.MapType)
		return ok && m.KeyType().ID() == arrow.STRING && holdsType(m.ItemType(), t.Elem)
	case schema.Struct:
		s, ok := dt.(*arrow.StructType)
		if !ok || s.NumFields() != len(t.Fields) {
			return false
		}
		for i := range t.Fields {
			if f := s.Field(i); f.Name != t.Fields[i].Name || !holdsType(f.Type, &t.Fields[i].Type) {
				return false
			}
		}
		return true
	default:
		return arrow.TypeEqual(dt, t.Arrow())
	}
}

// constantVec returns a literal's value as a vector.
func constantVec(l *expr.Literal) (*columnVec, error) {
	v := constantNull(l.T.Kind, l.T.Scale)
	if l.Value == nil {
		return v, nil
	}
	v.valid = nil
	var kind schema.Kind
	switch x := l.Value.(type) {
	case bool:
		kind, v.bits = schema.Bool, bitmap{bitOf(x)}
	case int32:
		kind, v.fixed = schema.Int32, castMemory[byte]([]int32{x})
	case int64:
		kind, v.fixed = schema.Int64, castMemory[byte]([]int64{x})
	case uint64:
		kind, v.fixed = schema.Uint64, castMemory[byte]([]uint64{x})
	case float64:
		kind, v.fixed = schema.Float64, castMemory[byte]([]float64{x})
	case decimal128.Num:
		kind, v.fixed = schema.Decimal, castMemory[byte]([]decimal128.Num{x})
	case string:
		kind, v.data = schema.String, []byte(x)
	case []byte:
		kind, v.data = schema.Binary, x
	case arrow.Date32:
		kind, v.fixed = schema.Date, castMemory[byte]([]arrow.Date32{x})
	case arrow.Timestamp:
		kind, v.fixed = schema.Timestamp, castMemory[byte]([]arrow.Timestamp{x})
	case arrow.MonthDayNanoInterval:
		kind, v.fixed = schema.Interval, castMemory[byte]([]arrow.MonthDayNanoInterval{x})
	}
	v.end[0] = int32(len(v.data))
	if kind != l.T.Kind {
		return nil, fmt.Errorf("vector: a constant of the type %s is a %T", &l.T, l.Value)
	}
	return v, nil
}

// compileCall compiles an operator. An expression that reads only one dictionary column is evaluated on the dictionary's values.
func (c *compiler) compileCall(e *expr.Call) (compiledNode, error) {
	if err := e.Check(); err != nil {
		return compiledNode{}, fmt.Errorf("vector: %w", err)
	}
	args := make([]compiledNode, len(e.Args))
	out := compiledNode{source: noSource}
	for i, a := range e.Args {
		var err error
		if args[i], err = c.compileExpr(a); err != nil {
			return compiledNode{}, err
		}
		out.cost += args[i].cost
		switch s := args[i].source; {
		case s == noSource || s == out.source:
		case out.source == noSource:
			out.source = s
		default:
			out.source = manySources
		}
	}
	for i := range args {
		if out.source == manySources {
			args[i].exprNode = c.encodedNode(args[i])
		}
	}
	o := callCompiler{compiler: c, e: e, args: args}
	n, err := o.compileNode()
	if err != nil {
		return compiledNode{}, err
	}
	if n == nil {
		return compiledNode{}, fmt.Errorf("vector: operator %s has no form for %s", e.Op, signatureOf(e))
	}
	out.exprNode = n
	out.cost += e.Cost()
	return out, nil
}

// encodedNode returns a node that evaluates by code, if that can be less work.
func (c *compiler) encodedNode(n compiledNode) exprNode {
	if n.source < 0 || c.columns[n.source].t.Kind != schema.String {
		return n.exprNode
	}
	if _, ok := n.exprNode.(columnNode); ok {
		return n.exprNode
	}
	if c.in.Field(c.columns[n.source].index).Type.ID() != arrow.DICTIONARY {
		return n.exprNode
	}
	return &byCode{n.source, n.exprNode}
}

func signatureOf(e *expr.Call) string {
	types := make([]string, len(e.Args))
	for i, a := range e.Args {
		types[i] = a.Type().String()
	}
	return "(" + strings.Join(types, ", ") + ") " + e.T.String()
}
