package plan

import (
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// conjunction returns the AND of terms, simplified by constants.
func conjunction(terms ...expr.Expr) expr.Expr { return junction(expr.And, terms) }

// disjunction returns the OR of terms, simplified by constants.
func disjunction(terms ...expr.Expr) expr.Expr { return junction(expr.Or, terms) }

// junction flattens terms and drops constants that do not decide it.
func junction(op expr.Op, terms []expr.Expr) expr.Expr {
	decides := op.Info().Decides
	flat := make([]expr.Expr, 0, len(terms))
	var null expr.Expr
	for _, t := range terms {
		switch t := t.(type) {
		case *expr.Literal:
			if t.Truth() == decides {
				return t
			}
			if t.Truth() == expr.Null {
				null = t
			}
			continue
		case *expr.Call:
			if t.Op == op {
				flat = append(flat, t.Args...)
				continue
			}
		}
		flat = append(flat, t)
	}
	if null != nil {
		flat = append(flat, null)
	}
	switch len(flat) {
	case 0:
		return literal(&typeBool, decides == expr.False)
	case 1:
		return flat[0]
	}
	return &expr.Call{Op: op, Args: flat, T: typeBool}
}

// negation returns NOT of a bool.
func negation(e expr.Expr) expr.Expr {
	switch e := e.(type) {
	case *expr.Literal:
		return truthLiteral(e.Truth().Not())
	case *expr.Call:
		op := e.Op.Info()
		switch {
		case e.Op == expr.Not:
			return e.Args[0]
		case op.Decides != 0:
			terms := make([]expr.Expr, len(e.Args))
			for i, a := range e.Args {
				terms[i] = negation(a)
			}
			if e.Op == expr.And {
				return disjunction(terms...)
			}
			return conjunction(terms...)
		case op.Opposite != 0:
			return &expr.Call{Op: op.Opposite, Args: e.Args, T: typeBool}
		}
	}
	return &expr.Call{Op: expr.Not, Args: []expr.Expr{e}, T: typeBool}
}

// negationIf returns NOT of a bool if not is set, otherwise the bool.
func negationIf(not bool, e expr.Expr) expr.Expr {
	if not {
		return negation(e)
	}
	return e
}

// truthLiteral returns the value of a condition as a constant.
func truthLiteral(t expr.Truths) *expr.Literal {
	if t == expr.Null {
		return literal(&typeBool, nil)
	}
	return literal(&typeBool, t == expr.True)
}

// makeCase returns a CASE without the branches that constants exclude.
func (b *queryBinder) makeCase(t schema.Type, args []expr.Expr) expr.Expr {
	kept := make([]expr.Expr, 0, len(args))
	last := args[len(args)-1]
	for i := 0; i+1 < len(args); i += 2 {
		if isTrue(args[i]) {
			last = args[i+1]
			break
		}
		if _, never := args[i].(*expr.Literal); never {
			continue
		}
		kept = append(kept, args[i], args[i+1])
	}
	if len(kept) == 0 {
		return last
	}
	return &expr.Call{Op: expr.Case, Args: append(kept, last), T: t}
}

// makeCoalesce returns COALESCE without nulls and without the arguments after a constant.
func (b *queryBinder) makeCoalesce(t schema.Type, args []expr.Expr) expr.Expr {
	kept := make([]expr.Expr, 0, len(args))
	for _, a := range args {
		l, constant := a.(*expr.Literal)
		if constant && l.Value == nil {
			continue
		}
		kept = append(kept, a)
		if constant {
			break
		}
	}
	switch len(kept) {
	case 0:
		return literal(&t, nil)
	case 1:
		return kept[0]
	}
	return &expr.Call{Op: expr.Coalesce, Args: kept, T: t}
}

// makeCall returns a call. If its arguments are constants and its value can be computed, it returns a constant.
func (b *queryBinder) makeCall(op expr.Op, t schema.Type, detail any, args ...expr.Expr) expr.Expr {
	c := &expr.Call{Op: op, Args: args, T: t, Detail: detail}
	constants := 0
	for _, a := range args {
		l, ok := a.(*expr.Literal)
		if !ok {
			continue
		}
		if constants++; l.Value == nil && c.NullRule() == expr.NullIfAny {
			return literal(&t, nil)
		}
	}
	if constants == len(args) {
		return foldConstant(c)
	}
	return c
}

// foldConstant returns a call of constants as a constant. It returns the call itself if it has no value, so that the failure is
// counted for each row.
func foldConstant(c *expr.Call) expr.Expr {
	if isCostly(c) || isNested(c.T.Kind) {
		return c
	}
	p, err := vector.Compile(c, noColumns)
	if err != nil {
		return c
	}
	var st vector.Stats
	a, err := p.Eval(oneRow, &st)
	if err != nil {
		return c
	}
	defer a.Release()
	if st.Errors > 0 {
		return c
	}
	if v, ok := scalarOf(a); ok {
		return literal(&c.T, v)
	}
	return c
}

// isCostly reports whether a call of constants may take far more time or memory than the query's text. The runner of a query has
// limits on both.
func isCostly(c *expr.Call) bool {
	l, ok := c.Args[0].(*expr.Literal)
	if !ok {
		return true
	}
	text, _ := l.Value.(string)
	return (c.Op == expr.Replace || c.Op == expr.Match || c.Op == expr.Like || c.Op == expr.ILike) && len(text) > 100
}

var (
	noColumns = arrow.NewSchema(nil, nil)
	oneRow    = array.NewRecordBatch(noColumns, nil, 1)
)

// scalarOf returns the first value of an array in the form of a literal's value.
func scalarOf(a arrow.Array) (any, bool) {
	if a.IsNull(0) {
		return nil, true
	}
	switch a := a.(type) {
	case *array.Boolean:
		return a.Value(0), true
	case *array.Int32:
		return a.Value(0), true
	case *array.Int64:
		return a.Value(0), true
	case *array.Uint64:
		return a.Value(0), true
	case *array.Float64:
		return a.Value(0), true
	case *array.Decimal128:
		return a.Value(0), true
	case *array.String:
		return strings.Clone(a.Value(0)), true
	case *array.Binary:
		return slices.Clone(a.Value(0)), true
	case *array.Date32:
		return a.Value(0), true
	case *array.Timestamp:
		return a.Value(0), true
	case *array.MonthDayNanoInterval:
		return a.Value(0), true
	}
	return nil, false
}
