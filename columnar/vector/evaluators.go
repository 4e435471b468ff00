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

// operator is a call that is being compiled.
type operator struct {
	*compiler
	e    *expr.Call
	args []compiled
}

func (o *operator) arg(i int) node { return o.args[i].node }

func (o *operator) nodes() []node {
	out := make([]node, len(o.args))
	for i := range o.args {
		out[i] = o.args[i].node
	}
	return out
}

// typeOf returns an argument's type; that of null if there is no such argument.
func (o *operator) typeOf(i int) *schema.Type {
	if i < len(o.e.Args) {
		return o.e.Args[i].Type()
	}
	return &schema.Type{Kind: schema.Null}
}

// evaluator makes the node of a call whose arguments were checked (see expr.Call.Check), nil if it has no form for their types.
type evaluator func(o *operator) (node, error)

// evaluators are those of the operators; junctions, comparisons and tests follow from the operators' descriptions.
var evaluators = [expr.Operators]evaluator{
	expr.Not:      func(o *operator) (node, error) { return notNode{o.arg(0)}, nil },
	expr.In:       (*operator).in,
	expr.Like:     (*operator).like,
	expr.ILike:    (*operator).like,
	expr.Match:    (*operator).match,
	expr.Case:     (*operator).cases,
	expr.Coalesce: func(o *operator) (node, error) { return &coalesceNode{&o.e.T, o.nodes()}, o.sameResult() },
	expr.NullIf:   func(o *operator) (node, error) { return &nullIfNode{o.arg(0), o.arg(1)}, nil },
	expr.Greatest: extreme(expr.Less),
	expr.Least:    extreme(expr.Greater),

	expr.Add:         (*operator).calculation,
	expr.Sub:         (*operator).calculation,
	expr.Mul:         (*operator).calculation,
	expr.Div:         (*operator).calculation,
	expr.Mod:         (*operator).calculation,
	expr.Neg:         (*operator).calculation,
	expr.Abs:         (*operator).calculation,
	expr.Floor:       (*operator).calculation,
	expr.Ceil:        (*operator).calculation,
	expr.Round:       (*operator).calculation,
	expr.ToTimestamp: (*operator).calculation,
	expr.Cast:        func(o *operator) (node, error) { return newCast(o.arg(0), o.typeOf(0), &o.e.T) },

	expr.Concat: func(o *operator) (node, error) {
		return &textNode{t: &o.e.T, args: o.nodes(), strict: o.e.NullRule() == expr.NullIfAny, add: appendConcat}, nil
	},
	expr.Lower:     func(o *operator) (node, error) { return newCaseNode(o.arg(0), false), nil },
	expr.Upper:     func(o *operator) (node, error) { return newCaseNode(o.arg(0), true), nil },
	expr.Length:    func(o *operator) (node, error) { return lengthNode{o.arg(0)}, nil },
	expr.Substring: cutting(substring),
	expr.SplitPart: cutting(splitPart),
	expr.Trim:      (*operator).trim,
	expr.Position: func(o *operator) (node, error) {
		return &arithNode{t: &o.e.T, a: o.arg(0), b: o.arg(1), calc: position}, nil
	},
	expr.StartsWith: func(o *operator) (node, error) {
		return &testNode{args: o.nodes(), test: func(args []*vec, i int) (bool, bool) {
			return bytes.HasPrefix(strAt(args[0], i), strAt(args[1], i)), true
		}}, nil
	},
	expr.Replace: func(o *operator) (node, error) {
		return &textNode{t: &o.e.T, args: o.nodes(), strict: true, add: appendReplace}, nil
	},

	expr.Extract:   (*operator).calendar,
	expr.DateTrunc: (*operator).calendar,
	expr.DateBin:   func(o *operator) (node, error) { return &binNode{o.arg(0), o.arg(1), o.arg(2)}, nil },

	expr.StructField:  (*operator).structField,
	expr.ListElement:  (*operator).listElement,
	expr.MapValue:     (*operator).mapValue,
	expr.ListLength:   func(o *operator) (node, error) { return listLengthNode{o.arg(0)}, nil },
	expr.ListContains: (*operator).listContains,
}

func (o *operator) node() (node, error) {
	switch info := o.e.Op.Info(); {
	case info.Decides != 0:
		return o.junction(info.Decides == expr.True), nil
	case info.Orders != 0:
		return &compareNode{info.Orders, info.Distinct, o.arg(0), o.arg(1)}, nil
	case info.Tests != 0:
		return truthNode{info.Tests, o.arg(0)}, nil
	}
	if make := evaluators[o.e.Op]; make != nil {
		return make(o)
	}
	return nil, nil
}

// junction orders the terms: which comes first does not change the answer.
func (o *operator) junction(decides bool) node {
	terms := slices.Clone(o.args)
	slices.SortStableFunc(terms, func(a, b compiled) int { return a.cost - b.cost })
	nodes := make([]node, len(terms))
	for i := range terms {
		nodes[i] = terms[i].node
	}
	return &junctionNode{nodes, decides}
}

// sameResult checks that the result has the type of the arguments.
func (o *operator) sameResult() error {
	if t := o.typeOf(0); !t.Equal(&o.e.T) {
		return fmt.Errorf("vector: %s of %s as %s", o.e.Op, t, &o.e.T)
	}
	return nil
}

// extreme is the greatest or least of values: the one so far is in this order to one that takes its place.
func extreme(order expr.Orders) evaluator {
	return func(o *operator) (node, error) { return &extremeNode{&o.e.T, o.nodes(), order}, o.sameResult() }
}

// cutting is a piece of a text.
func cutting(cut func(s []byte, args []*vec, i int) (from, to int, ok bool)) evaluator {
	return func(o *operator) (node, error) { return &cutNode{&o.e.T, o.nodes(), cut}, nil }
}

func (o *operator) trim() (node, error) {
	switch where, _ := o.e.Detail.(string); where {
	case "both", "leading", "trailing":
		return &cutNode{&o.e.T, o.nodes(), trimmer(where)}, nil
	default:
		return nil, nil
	}
}

func (o *operator) in() (node, error) {
	constants := make([]*vec, len(o.args)-1)
	for i := range constants {
		c, ok := o.arg(i + 1).(constantNode)
		if !ok {
			return nil, errors.New("vector: IN with an element that is no constant")
		}
		constants[i] = c.v
	}
	return newInNode(o.arg(0), constants), nil
}

func (o *operator) cases() (node, error) {
	if len(o.args)%2 == 0 {
		return nil, fmt.Errorf("vector: CASE with %d arguments", len(o.args))
	}
	n := &caseNode{t: &o.e.T}
	for i := range o.args {
		if i%2 == 1 || i == len(o.args)-1 {
			n.values = append(n.values, o.arg(i))
			if t := o.typeOf(i); !t.Equal(&o.e.T) {
				return nil, fmt.Errorf("vector: CASE of %s with a value of the type %s", &o.e.T, t)
			}
			continue
		}
		if k := o.typeOf(i).Kind; k != schema.Bool {
			return nil, fmt.Errorf("vector: CASE with a condition of the type %s", o.typeOf(i))
		}
		n.conditions = append(n.conditions, o.arg(i))
	}
	return n, nil
}

func (o *operator) like() (node, error) {
	binary := o.typeOf(0).Kind == schema.Binary
	a, fold := o.arg(0), func(b []byte) []byte { return b }
	if o.e.Op == expr.ILike && !binary {
		a, fold = newCaseNode(a, false), func(b []byte) []byte { return appendLower(nil, b) }
	}
	if len(o.args) == 1 {
		p, ok := o.e.Detail.(*expr.Pattern)
		if !ok || len(p.Parts) == 0 {
			return nil, errors.New("vector: LIKE without a pattern")
		}
		return newLikeNode(a, p, binary, fold), nil
	}
	pattern := o.arg(1)
	if o.e.Op == expr.ILike && !binary {
		pattern = newCaseNode(pattern, false)
	}
	return &testNode{args: []node{a, pattern}, test: func(args []*vec, i int) (bool, bool) {
		return matchesLike(strAt(args[0], i), strAt(args[1], i), binary)
	}}, nil
}

func (o *operator) match() (node, error) {
	if len(o.args) == 1 {
		re, ok := o.e.Detail.(*regexp.Regexp)
		if !ok {
			return nil, errors.New("vector: a match without a regular expression")
		}
		return newMatchNode(o.arg(0), re), nil
	}
	return &dynamicMatchNode{o.arg(0), o.arg(1)}, nil
}
