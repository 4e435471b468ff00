package vector

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// callCompiler is the state of compiling a call.
type callCompiler struct {
	*compiler
	e    *expr.Call
	args []compiledNode
}

func (o *callCompiler) argNode(i int) exprNode { return o.args[i].exprNode }

func (o *callCompiler) argNodes() []exprNode {
	out := make([]exprNode, len(o.args))
	for i := range o.args {
		out[i] = o.args[i].exprNode
	}
	return out
}

// typeOf returns an argument's type, or null's type if there is no such argument.
func (o *callCompiler) typeOf(i int) *schema.Type {
	if i < len(o.e.Args) {
		return o.e.Args[i].Type()
	}
	return &schema.Type{Kind: schema.Null}
}

// nodeMaker makes the node of a call with checked arguments (see expr.Call.Check), or nil if it does not support their types.
type nodeMaker func(o *callCompiler) (exprNode, error)

// evaluators holds the operators' evaluators. Those of junctions, comparisons and tests follow from the operators' descriptions.
var evaluators = [expr.Operators]nodeMaker{
	expr.Not:      func(o *callCompiler) (exprNode, error) { return notNode{o.argNode(0)}, nil },
	expr.In:       (*callCompiler).compileIn,
	expr.Like:     (*callCompiler).compileLike,
	expr.ILike:    (*callCompiler).compileLike,
	expr.Match:    (*callCompiler).compileMatch,
	expr.Case:     (*callCompiler).compileCase,
	expr.Coalesce: func(o *callCompiler) (exprNode, error) { return &coalesceNode{&o.e.T, o.argNodes()}, o.sameResult() },
	expr.NullIf:   func(o *callCompiler) (exprNode, error) { return &nullIfNode{o.argNode(0), o.argNode(1)}, nil },
	expr.Greatest: compileExtreme(expr.Less),
	expr.Least:    compileExtreme(expr.Greater),

	expr.Add:         (*callCompiler).compileCalculation,
	expr.Sub:         (*callCompiler).compileCalculation,
	expr.Mul:         (*callCompiler).compileCalculation,
	expr.Div:         (*callCompiler).compileCalculation,
	expr.Mod:         (*callCompiler).compileCalculation,
	expr.Neg:         (*callCompiler).compileCalculation,
	expr.Abs:         (*callCompiler).compileCalculation,
	expr.Floor:       (*callCompiler).compileCalculation,
	expr.Ceil:        (*callCompiler).compileCalculation,
	expr.Round:       (*callCompiler).compileCalculation,
	expr.ToTimestamp: (*callCompiler).compileCalculation,
	expr.Cast:        func(o *callCompiler) (exprNode, error) { return newCast(o.argNode(0), o.typeOf(0), &o.e.T) },

	expr.Concat: func(o *callCompiler) (exprNode, error) {
		return &textNode{t: &o.e.T, args: o.argNodes(), strict: o.e.NullRule() == expr.NullIfAny, add: appendConcat}, nil
	},
	expr.Lower:     func(o *callCompiler) (exprNode, error) { return &letterNode{o.argNode(0), false}, nil },
	expr.Upper:     func(o *callCompiler) (exprNode, error) { return &letterNode{o.argNode(0), true}, nil },
	expr.Length:    func(o *callCompiler) (exprNode, error) { return lengthNode{o.argNode(0)}, nil },
	expr.Substring: compileCut(cutSubstring),
	expr.SplitPart: compileCut(cutPart),
	expr.Trim:      (*callCompiler).compileTrim,
	expr.Position: func(o *callCompiler) (exprNode, error) {
		return &rowNode[int32]{&o.e.T, o.argNodes(), positionOf}, nil
	},
	expr.StartsWith: func(o *callCompiler) (exprNode, error) {
		return &testNode{args: o.argNodes(), test: func(args []*columnVec, i int) (bool, bool) {
			return bytes.HasPrefix(strAt(args[0], i), strAt(args[1], i)), true
		}}, nil
	},
	expr.Replace: func(o *callCompiler) (exprNode, error) {
		return &textNode{t: &o.e.T, args: o.argNodes(), strict: true, add: appendReplace}, nil
	},

	expr.Extract:   (*callCompiler).compileCalendar,
	expr.DateTrunc: (*callCompiler).compileCalendar,
	expr.DateBin: func(o *callCompiler) (exprNode, error) {
		return &rowNode[int64]{&o.e.T, o.argNodes(), binRow}, nil
	},

	expr.StructField:  (*callCompiler).compileField,
	expr.ListElement:  (*callCompiler).compileElement,
	expr.MapValue:     (*callCompiler).compileMapValue,
	expr.ListLength:   func(o *callCompiler) (exprNode, error) { return listLengthNode{o.argNode(0)}, nil },
	expr.ListContains: (*callCompiler).compileContains,
}

func (o *callCompiler) compileNode() (exprNode, error) {
	switch info := o.e.Op.Info(); {
	case info.Decides != 0:
		return o.compileJunction(info.Decides == expr.True), nil
	case info.Orders != 0:
		return &compareNode{info.Orders, info.Distinct, o.argNode(0), o.argNode(1)}, nil
	case info.Tests != 0:
		return truthNode{info.Tests, o.argNode(0)}, nil
	}
	if evaluator := evaluators[o.e.Op]; evaluator != nil {
		return evaluator(o)
	}
	return nil, nil
}

// compileJunction orders the terms by cost. The order does not change the result.
func (o *callCompiler) compileJunction(decides bool) exprNode {
	terms := slices.Clone(o.args)
	slices.SortStableFunc(terms, func(a, b compiledNode) int { return a.cost - b.cost })
	nodes := make([]exprNode, len(terms))
	for i := range terms {
		nodes[i] = terms[i].exprNode
	}
	return &junctionNode{nodes, decides}
}

// sameResult checks that the result has the type of the arguments.
func (o *callCompiler) sameResult() error {
	if t := o.typeOf(0); !t.Equal(&o.e.T) {
		return fmt.Errorf("vector: %s of %s as %s", o.e.Op, t, &o.e.T)
	}
	return nil
}

// compileExtreme compiles the greatest or least of values. order is the order of the current extreme to a value that replaces it.
func compileExtreme(order expr.Orders) nodeMaker {
	return func(o *callCompiler) (exprNode, error) {
		return &extremeNode{&o.e.T, o.argNodes(), order}, o.sameResult()
	}
}

// compileCut compiles an operator that returns a piece of a text.
func compileCut(cut func(s []byte, args []*columnVec, i int) (from, to int, ok bool)) nodeMaker {
	return func(o *callCompiler) (exprNode, error) { return &cutNode{&o.e.T, o.argNodes(), cut}, nil }
}

func (o *callCompiler) compileTrim() (exprNode, error) {
	switch where, _ := o.e.Detail.(string); where {
	case "both", "leading", "trailing":
		return &cutNode{&o.e.T, o.argNodes(), cutTrim(where)}, nil
	default:
		return nil, nil
	}
}

func (o *callCompiler) compileIn() (exprNode, error) {
	constants := make([]*columnVec, len(o.args)-1)
	for i := range constants {
		c, ok := o.argNode(i + 1).(constantNode)
		if !ok {
			return nil, errors.New("vector: IN with an element that is no constant")
		}
		constants[i] = c.v
	}
	return newInNode(o.argNode(0), constants), nil
}

func (o *callCompiler) compileCase() (exprNode, error) {
	if len(o.args)%2 == 0 {
		return nil, fmt.Errorf("vector: CASE with %d arguments", len(o.args))
	}
	n := &caseNode{t: &o.e.T}
	for i := range o.args {
		if i%2 == 1 || i == len(o.args)-1 {
			n.values = append(n.values, o.argNode(i))
			if t := o.typeOf(i); !t.Equal(&o.e.T) {
				return nil, fmt.Errorf("vector: CASE of %s with a value of the type %s", &o.e.T, t)
			}
			continue
		}
		if k := o.typeOf(i).Kind; k != schema.Bool {
			return nil, fmt.Errorf("vector: CASE with a condition of the type %s", o.typeOf(i))
		}
		n.conditions = append(n.conditions, o.argNode(i))
	}
	return n, nil
}

func (o *callCompiler) compileLike() (exprNode, error) {
	binary := o.typeOf(0).Kind == schema.Binary
	a, fold := o.argNode(0), func(b []byte) []byte { return b }
	if o.e.Op == expr.ILike && !binary {
		a, fold = &letterNode{a, false}, func(b []byte) []byte { return appendLower(nil, b) }
	}
	if len(o.args) == 1 {
		p, ok := o.e.Detail.(*expr.Pattern)
		if !ok || len(p.Parts) == 0 {
			return nil, errors.New("vector: LIKE without a pattern")
		}
		return newLikeNode(a, p, binary, fold), nil
	}
	pattern := o.argNode(1)
	if o.e.Op == expr.ILike && !binary {
		pattern = &letterNode{pattern, false}
	}
	return &testNode{args: []exprNode{a, pattern}, test: func(args []*columnVec, i int) (bool, bool) {
		return matchesLike(strAt(args[0], i), strAt(args[1], i), binary)
	}}, nil
}

func (o *callCompiler) compileMatch() (exprNode, error) {
	if len(o.args) == 1 {
		re, ok := o.e.Detail.(*regexp.Regexp)
		if !ok {
			return nil, errors.New("vector: a match without a regular expression")
		}
		return newMatchNode(o.argNode(0), re), nil
	}
	return &dynamicMatchNode{o.argNode(0), o.argNode(1)}, nil
}
