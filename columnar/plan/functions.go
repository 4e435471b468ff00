package plan

import (
	"maps"
	"slices"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/near"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// functionCall is a function call in the text, with its bound arguments.
type functionCall struct {
	*sql.Call
	args []typedOperand
}

// sqlFunction is a function that is computed per row. least and most are its numbers of arguments; most is -1 for any number.
type sqlFunction struct {
	least, most int
	bind        func(b *queryBinder, c *functionCall) typedOperand
}

// functions maps names to functions: those in the table of operators (package expr), and those composed of several operators.
var functions map[string]sqlFunction

func init() { //nolint:gochecknoinits // functions bind calls of functions: a literal would be a cycle
	functions = map[string]sqlFunction{
		"length":            {1, 1, bindLength},
		"char_length":       {1, 1, bindLength},
		"character_length":  {1, 1, bindLength},
		"substr":            functionOf(expr.Substring),
		"left":              {2, 2, bindEnd},
		"right":             {2, 2, bindEnd},
		"position":          {2, 2, bindPosition},
		"btrim":             {1, 2, bindTrim},
		"ltrim":             {1, 2, bindTrim},
		"rtrim":             {1, 2, bindTrim},
		"concat":            {1, -1, bindConcat},
		"convert_from":      {2, 2, bindConvertFrom},
		"regexp_like":       {2, 3, bindRegexpLike},
		"abs":               {1, 1, bindAbs},
		"floor":             {1, 1, bindRounding},
		"ceil":              {1, 1, bindRounding},
		"ceiling":           {1, 1, bindRounding},
		"round":             {1, 2, bindRound},
		"mod":               {2, 2, bindMod},
		"greatest":          {1, -1, bindExtreme},
		"least":             {1, -1, bindExtreme},
		"coalesce":          {1, -1, bindCoalesce},
		"nullif":            {2, 2, bindNullIf},
		"extract":           {2, 2, bindExtract},
		"date_part":         {2, 2, bindExtract},
		"date_trunc":        {2, 2, bindDateTrunc},
		"now":               {0, 0, bindNow},
		"current_timestamp": {0, 0, bindNow},
		"localtimestamp":    {0, 0, bindNow},
		"current_date":      {0, 0, bindNow},
		"array_length":      {2, 2, bindArrayLength},
	}
	for op := range expr.Op(expr.Operators) {
		if name := op.Info().SQL; name != "" {
			functions[name] = functionOf(op)
		}
	}
}

// functionOf returns the function that applies an operator to its arguments.
func functionOf(op expr.Op) sqlFunction {
	info := op.Info()
	least, most := info.Arity()
	return sqlFunction{least, most, func(b *queryBinder, c *functionCall) typedOperand {
		if check := argumentChecks[op]; check != nil {
			check(b, c)
		}
		args := make([]expr.Expr, len(c.args))
		for i := range args {
			kind, nested := info.Args[i].Only()
			if nested {
				b.refuseIf(!info.Args[i].Has(c.args[i].typ().Kind), c)
				args[i] = c.args[i].e
				continue
			}
			args[i] = b.argAs(c, i, &schema.Type{Kind: kind})
		}
		return typedOperand{e: b.makeCall(op, schema.Type{Kind: info.Result}, nil, args...)}
	}}
}

// argumentChecks reject arguments for which a function in the table of operators never has a value, or that need a hint.
var argumentChecks = map[expr.Op]func(b *queryBinder, c *functionCall){
	expr.Substring: func(b *queryBinder, c *functionCall) {
		if o := c.args[1]; o.unknown || o.e.Type().Kind == schema.String {
			panic(b.errorAt(o.pos, "Places are integers.", "substring() with a regular expression is not supported"))
		}
	},
	expr.SplitPart: func(b *queryBinder, c *functionCall) {
		if l, ok := b.argAs(c, 2, &typeInt32).(*expr.Literal); ok && l.Value == int32(0) {
			panic(b.errorAt(c.args[2].pos, "", "field position must not be zero"))
		}
	},
	expr.DateBin: checkStride,
	expr.ToTimestamp: func(b *queryBinder, c *functionCall) {
		if o := c.args[0]; !o.unknown && o.e.Type().Kind == schema.String {
			panic(b.errorAt(c.At, "Cast the text: x::timestamptz.", "function %s does not exist", c.signature()))
		}
	},
}

// instead maps unsupported PostgreSQL functions to an alternative.
var instead = map[string]string{
	"age": "Subtract the instants.", "to_char": "Cast to text.", "to_date": "Cast to date.", "to_number": "Cast to numeric.",
	"concat_ws": "Use concat() or ||.", "format": "Use concat() or ||.", "regexp_match": "Use ~, split_part() or substring().",
	"regexp_matches": "Use ~, split_part() or substring().", "regexp_replace": "Use replace().", "ends_with": "Use right() or LIKE.",
	"contains": "Use LIKE, or position().", "instr": "Use strpos().", "len": "Use length().", "ucase": "Use upper().", "lcase": "Use lower().",
	"ifnull": "Use coalesce().", "nvl": "Use coalesce().", "isnull": "Use IS NULL.", "if": "Use CASE.", "iif": "Use CASE.",
	"median": "Use approx_quantile(x, 0.5).", "percentile_cont": "Use approx_quantile(x, q).", "percentile_disc": "Use approx_quantile(x, q).",
	"quantile": "Use approx_quantile(x, q).", "approx_percentile": "Use approx_quantile(x, q).", "percentile": "Use approx_quantile(x, q).",
	"approx_distinct": "Use approx_count_distinct(x).", "uniq": "Use approx_count_distinct(x).",
	"datediff": "Subtract the instants.", "dateadd": "Add an interval.", "time_bucket": "Use date_bin(stride, x, origin).",
	"clock_timestamp": "Use now().", "sysdate": "Use now().", "getdate": "Use now().", "unix_timestamp": "Use extract(epoch FROM x).",
	"from_unixtime": "Use to_timestamp().", "timestampdiff": "Subtract the instants.", "unnest": "Name an element: a[1].",
	"octet_length": "Use length() of a bytea.", "json_extract": "Fields are named with a dot: a.b.", "array_agg": "Groups have single values.",
	"string_agg": "Groups have single values.", "any_value": "Use min().", "first": "Use min().", "last": "Use max().",
	"row_number": "Order and number the answer where it is read.",
}

// bindFunction binds a function call.
func (b *queryBinder) bindFunction(e *sql.Call) typedOperand {
	if aggregates[e.Func] {
		return b.bindAggregate(e)
	}
	f, known := functions[e.Func]
	switch {
	case e.Star:
		panic(b.errorAt(e.At, "", "%s(*) specified, but %s is not an aggregate function", sql.ClipText(e.Func), sql.ClipText(e.Func)))
	case known && e.Distinct:
		panic(b.errorAt(e.At, "", "DISTINCT specified, but %s is not an aggregate function", e.Func))
	case known && e.Filter != nil:
		panic(b.errorAt(e.At, "", "FILTER specified, but %s is not an aggregate function", e.Func))
	}
	c := &functionCall{Call: e, args: b.bindAll(e.Args...)}
	if !known {
		if t, ok := sql.NamedType(e.Func); ok && len(c.args) == 1 {
			return b.castTo(c.args[0], namedType(t), e.At)
		}
		panic(b.functionError(c))
	}
	b.refuseIf(len(c.args) < f.least || f.most >= 0 && len(c.args) > f.most, c)
	o := f.bind(b, c)
	o.pos = e.At
	return o
}

// signature returns the function's name with the types of its arguments.
func (c *functionCall) signature() string {
	types := make([]string, 0, len(c.args))
	for i := range c.args {
		if i == 8 {
			types = append(types, "...")
			break
		}
		types = append(types, typeName(c.args[i].typ()))
	}
	return sql.ClipText(c.Func) + "(" + strings.Join(types, ", ") + ")"
}

// refuseIf fails if a function does not accept its arguments.
func (b *queryBinder) refuseIf(unfit bool, c *functionCall) {
	if unfit {
		panic(b.signatureError(c))
	}
}

// signatureError returns the error for arguments that a function does not accept.
func (b *queryBinder) signatureError(c *functionCall) error {
	hint := "No function matches the given name and argument types. You might need to add explicit type casts."
	for i := range c.args {
		if c.args[i].typ().Kind == schema.Binary {
			hint = "Cast the bytea to text."
		}
	}
	return b.errorAt(c.At, hint, "function %s does not exist", c.signature())
}

func (b *queryBinder) functionError(c *functionCall) error {
	hint, ok := instead[c.Func]
	if !ok {
		names := slices.AppendSeq(slices.Collect(maps.Keys(functions)), maps.Keys(aggregates))
		slices.Sort(names) // deterministic among equally near names
		if found := near.Names(c.Func, names); len(found) > 0 {
			hint = "Perhaps you meant " + found[0] + "()."
		}
	}
	return b.errorAt(c.At, hint, "function %s does not exist", c.signature())
}

// argAs converts the i-th argument, if PostgreSQL does so implicitly.
func (b *queryBinder) argAs(c *functionCall, i int, t *schema.Type) expr.Expr {
	o := c.args[i]
	b.refuseIf(!o.unknown && !isImplicit(o.e.Type(), t), c)
	return b.convertTo(o, t)
}

// textArgs converts all arguments to text.
func (b *queryBinder) textArgs(c *functionCall) []expr.Expr {
	args := make([]expr.Expr, len(c.args))
	for i := range c.args {
		args[i] = b.argAs(c, i, &typeString)
	}
	return args
}

// constantArg returns the value of an argument that must be a constant of a type.
func constantArg[T any](b *queryBinder, c *functionCall, i int, t *schema.Type) T {
	l, ok := b.argAs(c, i, t).(*expr.Literal)
	b.failIf(!ok || l.Value == nil, c.args[i].pos, "", "argument %d of %s() must be a constant", i+1, c.Func)
	return l.Value.(T)
}

// numberArg returns the first argument as a floating-point number or decimal. Integers become double precision, as in PostgreSQL.
func (b *queryBinder) numberArg(c *functionCall) expr.Expr {
	o := c.args[0]
	if !o.unknown && o.e.Type().Kind == schema.Decimal {
		return o.e
	}
	return b.argAs(c, 0, &typeFloat64)
}

func bindAbs(b *queryBinder, c *functionCall) typedOperand {
	o := c.args[0]
	if o.unknown {
		return typedOperand{e: b.makeCall(expr.Abs, typeFloat64, nil, b.convertTo(o, &typeFloat64))}
	}
	t := o.e.Type()
	switch {
	case t.Kind == schema.Uint64:
		return o
	case !isNumeric(t.Kind):
		panic(b.signatureError(c))
	}
	return typedOperand{e: b.makeCall(expr.Abs, plainType(t), nil, o.e)}
}

var roundings = map[string]expr.Op{"floor": expr.Floor, "ceil": expr.Ceil, "ceiling": expr.Ceil, "round": expr.Round}

// bindRounding binds a function that rounds to an integer.
func bindRounding(b *queryBinder, c *functionCall) typedOperand {
	e := b.numberArg(c)
	t := plainType(e.Type())
	if t.Kind == schema.Decimal {
		t = decimal(t.Precision-t.Scale+1, 0, 0)
	}
	return typedOperand{e: b.makeCall(roundings[c.Func], t, nil, e)}
}

func bindRound(b *queryBinder, c *functionCall) typedOperand {
	if len(c.args) == 1 {
		return bindRounding(b, c)
	}
	o := c.args[0]
	b.failIf(!o.unknown && o.e.Type().Kind == schema.Float64, c.At, "Cast to numeric: round(x::numeric, n).",
		"function %s does not exist", c.signature())
	t := schema.Type{Kind: schema.Decimal}
	if !o.unknown {
		b.refuseIf(!isNumeric(o.e.Type().Kind), c)
		t = b.decimalType(o)
	}
	e := b.convertTo(o, &t)
	n := constantArg[int32](b, c, 1, &typeInt32)
	b.failIf(n < 0, c.args[1].pos, "Divide, round and multiply.", "round() to digits before the point is not supported")
	t = plainType(e.Type())
	if n >= t.Scale {
		return typedOperand{e: e}
	}
	return typedOperand{e: b.makeCall(expr.Round, decimal(t.Precision-t.Scale+1, n, n), nil, e)}
}

func bindMod(b *queryBinder, c *functionCall) typedOperand {
	for i := range c.args {
		b.refuseIf(!c.args[i].unknown && (!isNumeric(c.args[i].typ().Kind) || c.args[i].typ().Kind == schema.Float64), c)
	}
	return typedOperand{e: b.calculate(c.At, expr.Mod, "%", c.args[0], c.args[1])}
}

func bindExtreme(b *queryBinder, c *functionCall) typedOperand {
	t, args := b.convertAlike(strings.ToUpper(c.Func), c.args)
	b.refuseIf(isNested(t.Kind), c)
	op := expr.Greatest
	if c.Func == "least" {
		op = expr.Least
	}
	if len(args) == 1 {
		return typedOperand{e: args[0]}
	}
	return typedOperand{e: b.makeCall(op, t, nil, args...)}
}

func bindCoalesce(b *queryBinder, c *functionCall) typedOperand {
	t, args := b.convertAlike("COALESCE", c.args)
	return typedOperand{e: b.makeCoalesce(t, args)}
}

func bindNullIf(b *queryBinder, c *functionCall) typedOperand {
	l, r := c.args[0], c.args[1]
	equal := b.bindComparison(c.At, expr.Eq, "=", l, r)
	if l.unknown {
		t := plainType(&typeString)
		if !r.unknown {
			t = plainType(r.e.Type())
		}
		l = b.readUnknown(l, &t)
	}
	// As in PostgreSQL, an integer becomes the type that it is compared as, if that is not an integer.
	if t, _, ok := b.commonOf(false, l, r); ok && isInteger(l.e.Type().Kind) && !isInteger(t.Kind) {
		return typedOperand{e: b.makeCall(expr.NullIf, t, nil, b.convertTo(l, &t), b.convertTo(r, &t))}
	}
	t := plainType(l.e.Type())
	if c, ok := equal.(*expr.Call); ok && c.Op == expr.Eq && c.Args[0] == l.e {
		return typedOperand{e: b.makeCall(expr.NullIf, t, nil, c.Args...)}
	}
	b.countAgain(l)
	return typedOperand{e: b.makeCase(t, []expr.Expr{equal, literal(&t, nil), l.e})}
}

// bindArrayLength binds array_length. For an empty list it is null, as in PostgreSQL.
func bindArrayLength(b *queryBinder, c *functionCall) typedOperand {
	b.refuseIf(c.args[0].typ().Kind != schema.List, c)
	b.failIf(constantArg[int32](b, c, 1, &typeInt32) != 1, c.args[1].pos, "Take an element first: array_length(a[1], 1).", "lists have one dimension")
	return typedOperand{e: b.makeCall(expr.NullIf, typeInt32, nil, b.makeCall(expr.ListLength, typeInt32, nil, c.args[0].e), literal(&typeInt32, int32(0)))}
}
