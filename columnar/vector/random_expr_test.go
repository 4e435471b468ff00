package vector_test

import (
	"regexp"

	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// allTypes are those that expressions are drawn of.
var allTypes = []*schema.Type{
	&boolT, &boolT, &boolT, &int32T, &int64T, &uint64T, &floatT, &moneyT, &wideT, &textT, &textT, &textT, &bytesT, &dateT, &timeT, &spanT, &intsT, &pairT,
}

// orderedInt are those that can be compared.
var orderedInt = []*schema.Type{&boolT, &int32T, &int64T, &uint64T, &floatT, &moneyT, &wideT, &textT, &textT, &bytesT, &dateT, &timeT, &spanT}

func oneOf[T any](t *rapid.T, of ...T) T { return rapid.SampledFrom(of).Draw(t, "which") }

// drawExpr returns an expression of a type.
func drawExpr(t *rapid.T, ty *schema.Type, depth int) expr.Expr {
	if depth <= 0 || rapid.IntRange(0, 6).Draw(t, "leaf") == 0 {
		return drawLeaf(t, ty)
	}
	sub := func(ty *schema.Type) expr.Expr { return drawExpr(t, ty, depth-1) }
	switch rapid.IntRange(0, 11).Draw(t, "form") {
	case 0:
		return call(expr.Case, *ty, sub(&boolT), sub(ty), sub(&boolT), sub(ty), sub(ty))
	case 1:
		return call(expr.Coalesce, *ty, sub(ty), sub(ty))
	}
	if nestedKind(ty) {
		return drawNested(t, ty, sub)
	}
	switch rapid.IntRange(0, 15).Draw(t, "general") {
	case 0:
		return call(expr.NullIf, *ty, sub(ty), sub(ty))
	case 1:
		return call(oneOf(t, expr.Greatest, expr.Least), *ty, sub(ty), sub(ty), sub(ty))
	case 2:
		if from := castable(t, ty); from != nil {
			return call(expr.Cast, *ty, sub(from))
		}
	}
	switch ty.Kind {
	case schema.Bool:
		return drawBool(t, sub)
	case schema.String:
		return drawText(t, sub)
	case schema.Binary:
		return call(expr.Cast, bytesT, sub(&textT))
	case schema.Date, schema.Timestamp, schema.Interval:
		return drawTime(t, ty, sub)
	default:
		return drawNumber(t, ty, sub)
	}
}

func nestedKind(ty *schema.Type) bool {
	return ty.Kind == schema.List || ty.Kind == schema.Struct || ty.Kind == schema.Map
}

func drawLeaf(t *rapid.T, ty *schema.Type) expr.Expr {
	var of []expr.Expr
	for _, c := range columns {
		if c.T.Equal(ty) {
			of = append(of, c)
		}
	}
	if !nestedKind(ty) && (len(of) == 0 || rapid.IntRange(0, 3).Draw(t, "literal") == 0) {
		return lit(drawValue(t, ty), *ty)
	}
	return oneOf(t, of...)
}

// castable returns a type that has a cast to ty.
func castable(t *rapid.T, ty *schema.Type) *schema.Type {
	switch ty.Kind {
	case schema.Bool:
		return oneOf(t, &textT, &int32T, &int64T)
	case schema.Int32, schema.Int64:
		return oneOf(t, &textT, &int32T, &int64T, &uint64T, &floatT, &moneyT, &wideT, &boolT)
	case schema.Uint64, schema.Float64, schema.Decimal:
		return oneOf(t, &textT, &int32T, &int64T, &uint64T, &floatT, &moneyT, &wideT)
	case schema.String:
		return oneOf(t, orderedInt...)
	case schema.Date:
		return oneOf(t, &textT, &timeT)
	case schema.Timestamp:
		return oneOf(t, &textT, &dateT)
	case schema.Interval, schema.Binary:
		return &textT
	default:
		return nil
	}
}

func drawNested(t *rapid.T, ty *schema.Type, sub func(*schema.Type) expr.Expr) expr.Expr {
	if ty.Kind == schema.List {
		return &expr.Call{Op: expr.StructField, T: *ty, Args: []expr.Expr{sub(&pairT)}, Detail: 2}
	}
	return drawLeaf(t, ty)
}

func drawBool(t *rapid.T, sub func(*schema.Type) expr.Expr) expr.Expr {
	switch rapid.IntRange(0, 11).Draw(t, "bool") {
	case 0, 1:
		return call(oneOf(t, expr.And, expr.Or), boolT, sub(&boolT), sub(&boolT), sub(&boolT))
	case 2:
		return call(expr.Not, boolT, sub(&boolT))
	case 3:
		return call(oneOf(t, expr.IsNull, expr.IsNotNull), boolT, sub(oneOf(t, allTypes...)))
	case 4:
		return call(oneOf(t, expr.IsTrue, expr.IsNotTrue, expr.IsFalse, expr.IsNotFalse), boolT, sub(&boolT))
	case 5:
		ty := oneOf(t, orderedInt...)
		args := []expr.Expr{sub(ty)}
		for range rapid.IntRange(0, 8).Draw(t, "constants") {
			args = append(args, lit(drawValue(t, ty), *ty))
		}
		return call(expr.In, boolT, args...)
	case 6, 7:
		return drawLike(t, sub)
	case 8:
		re, err := regexp.Compile(oneOf(t, someRegexps...))
		if err != nil || rapid.IntRange(0, 3).Draw(t, "dynamic") == 0 {
			return call(expr.Match, boolT, sub(&textT), lit(oneOf(t, someRegexps...), textT))
		}
		return &expr.Call{Op: expr.Match, T: boolT, Args: []expr.Expr{sub(&textT)}, Detail: re}
	case 9:
		if rapid.Bool().Draw(t, "texts") {
			return call(expr.ListContains, boolT, sub(&textT), col("ls", textsT))
		}
		return call(expr.ListContains, boolT, sub(&int64T), sub(&intsT))
	default:
		ty := oneOf(t, orderedInt...)
		if rapid.IntRange(0, 6).Draw(t, "prefix") == 0 {
			return call(expr.StartsWith, boolT, sub(&textT), sub(&textT))
		}
		return call(oneOf(t, expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge, expr.IsDistinct, expr.IsNotDistinct), boolT, sub(ty), sub(ty))
	}
}

func drawLike(t *rapid.T, sub func(*schema.Type) expr.Expr) expr.Expr {
	op, ty := oneOf(t, expr.Like, expr.Like, expr.ILike), oneOf(t, &textT, &textT, &bytesT)
	if ty == &bytesT {
		op = expr.Like
	}
	if rapid.IntRange(0, 3).Draw(t, "dynamic") == 0 {
		return call(op, boolT, sub(ty), sub(ty))
	}
	text := oneOf(t, "a%", "%a", "%a%", "%ab%", "%html%", "a", "", "%", "%%", "_%", "a_b", "%_b", "_b%_", "%ä%", "%a%b%", `a\%`, `%\_b`, "%GET /i%", "Ä%", "%b_b%", "%Ä_€%", "%, %")
	p, err := expr.ParsePattern(text, '\\', op == expr.ILike)
	if err != nil {
		t.Fatal(err)
	}
	return &expr.Call{Op: op, T: boolT, Args: []expr.Expr{sub(ty)}, Detail: p}
}

func drawText(t *rapid.T, sub func(*schema.Type) expr.Expr) expr.Expr {
	small := func() expr.Expr {
		if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
			return sub(&int32T)
		}
		return lit(int32(rapid.IntRange(-3, 6).Draw(t, "small")), int32T)
	}
	switch rapid.IntRange(0, 9).Draw(t, "text") {
	case 0:
		return call(expr.Concat, textT, sub(&textT), sub(&textT))
	case 1:
		return &expr.Call{Op: expr.Concat, T: textT, Args: []expr.Expr{sub(&textT), sub(&textT), sub(&textT)}, Detail: "skip"}
	case 2:
		return call(oneOf(t, expr.Lower, expr.Upper), textT, sub(&textT))
	case 3:
		return call(expr.Substring, textT, sub(&textT), small())
	case 4:
		return call(expr.Substring, textT, sub(&textT), small(), small())
	case 5:
		return &expr.Call{Op: expr.Trim, T: textT, Args: []expr.Expr{sub(&textT), sub(&textT)}, Detail: oneOf(t, "both", "leading", "trailing")}
	case 6:
		return call(expr.Replace, textT, sub(&textT), sub(&textT), sub(&textT))
	case 7:
		return call(expr.SplitPart, textT, sub(&textT), lit(oneOf(t, ",", "a", "b", ""), textT), small())
	case 8:
		return call(expr.MapValue, textT, col("m", mapT), lit(oneOf(t, "a", "b", ""), textT))
	default:
		if rapid.Bool().Draw(t, "field") {
			return &expr.Call{Op: expr.StructField, T: textT, Args: []expr.Expr{sub(&pairT)}, Detail: 1}
		}
		return call(expr.ListElement, textT, col("ls", textsT), small())
	}
}

func drawNumber(t *rapid.T, ty *schema.Type, sub func(*schema.Type) expr.Expr) expr.Expr {
	switch {
	case ty.Kind == schema.Int32:
		switch rapid.IntRange(0, 6).Draw(t, "int32") {
		case 0:
			return call(expr.Length, int32T, sub(oneOf(t, &textT, &bytesT)))
		case 1:
			return call(expr.Position, int32T, sub(&textT), sub(&textT))
		case 2:
			return call(expr.ListLength, int32T, sub(&intsT))
		case 3:
			return call(expr.Sub, int32T, sub(&dateT), sub(&dateT))
		}
	case ty.Kind == schema.Int64 && rapid.IntRange(0, 4).Draw(t, "int64") == 0:
		if rapid.Bool().Draw(t, "element") {
			return call(expr.ListElement, int64T, sub(&intsT), sub(oneOf(t, &int32T, &int64T)))
		}
		return &expr.Call{Op: expr.StructField, T: int64T, Args: []expr.Expr{sub(&pairT)}, Detail: 0}
	case ty.Kind == schema.Float64 && rapid.IntRange(0, 2).Draw(t, "float64") == 0:
		from := oneOf(t, &timeT, &timeT, &dateT, &spanT)
		fields := []string{
			"year", "month", "day", "hour", "minute", "second", "epoch",
			"millisecond", "microsecond", "dow", "isodow", "doy", "week", "isoyear", "quarter", "century", "decade", "millennium",
		}
		if from == &spanT {
			fields = fields[:7]
		}
		return &expr.Call{Op: expr.Extract, T: floatT, Args: []expr.Expr{drawLeaf(t, from)}, Detail: oneOf(t, fields...)}
	}
	op := oneOf(t, expr.Add, expr.Sub, expr.Mul, expr.Div, expr.Mod, expr.Neg, expr.Abs, expr.Floor, expr.Ceil, expr.Round)
	a, b := ty, ty
	if ty.Kind == schema.Decimal && op != expr.Mod {
		a, b = oneOf(t, &moneyT, &wideT), oneOf(t, &moneyT, &wideT)
	}
	switch op {
	case expr.Neg, expr.Abs, expr.Floor, expr.Ceil, expr.Round:
		return call(op, *ty, sub(a))
	default:
		return call(op, *ty, sub(a), sub(b))
	}
}

func drawTime(t *rapid.T, ty *schema.Type, sub func(*schema.Type) expr.Expr) expr.Expr {
	switch ty.Kind {
	case schema.Date:
		return call(oneOf(t, expr.Add, expr.Sub), dateT, sub(&dateT), sub(&int32T))
	case schema.Interval:
		switch rapid.IntRange(0, 4).Draw(t, "interval") {
		case 0:
			return call(expr.Sub, spanT, drawLeaf(t, &timeT), drawLeaf(t, &timeT))
		case 1:
			return call(oneOf(t, expr.Mul, expr.Div), spanT, sub(&spanT), sub(&floatT))
		case 2:
			return call(expr.Neg, spanT, sub(&spanT))
		default:
			return call(oneOf(t, expr.Add, expr.Sub), spanT, sub(&spanT), sub(&spanT))
		}
	default:
		switch rapid.IntRange(0, 3).Draw(t, "timestamp") {
		case 0:
			return &expr.Call{Op: expr.DateTrunc, T: timeT, Args: []expr.Expr{drawLeaf(t, &timeT)}, Detail: oneOf(t,
				"microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade", "century", "millennium")}
		case 1:
			return call(expr.DateBin, timeT, sub(&spanT), drawLeaf(t, &timeT), drawLeaf(t, &timeT))
		case 2:
			return call(expr.ToTimestamp, timeT, lit(oneOf(t, 0, 1.5, -1e9, 1709210096.1234567, 1e300), floatT))
		default:
			return call(oneOf(t, expr.Add, expr.Sub), timeT, drawLeaf(t, &timeT), drawLeaf(t, &spanT))
		}
	}
}
