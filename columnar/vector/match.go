package vector

import (
	"regexp"
	"regexp/syntax"

	"scribe/columnar/schema"
)

// matchNode searches texts for a regular expression.
type matchNode struct {
	a  exprNode
	re *regexp.Regexp
	// must is a text that every match contains; empty if there is none. only means that finding it is sufficient.
	must []byte
	only bool
}

func newMatchNode(a exprNode, re *regexp.Regexp) *matchNode {
	n := &matchNode{a: a, re: re}
	if tree, err := syntax.Parse(re.String(), syntax.Perl); err == nil {
		must, only := requiredText(tree.Simplify())
		n.must, n.only = []byte(must), only && must != ""
	}
	return n
}

// requiredText returns the longest text that every match contains. only reports whether the expression matches exactly where that
// text is.
func requiredText(re *syntax.Regexp) (text string, only bool) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase != 0 {
			return "", false
		}
		return string(re.Rune), true
	case syntax.OpCapture:
		return requiredText(re.Sub[0])
	case syntax.OpPlus:
		text, _ = requiredText(re.Sub[0])
		return text, false
	case syntax.OpRepeat:
		if re.Min > 0 {
			text, _ = requiredText(re.Sub[0])
		}
		return text, false
	case syntax.OpConcat:
		// Adjacent texts form one text: the parser has joined them, except those in groups.
		only = true
		run := ""
		for _, sub := range re.Sub {
			t, whole := requiredText(sub)
			only = only && whole
			if whole {
				run += t
				t = run
			} else {
				run = ""
			}
			if len(t) > len(text) {
				text = t
			}
		}
		return text, only
	default:
		return "", false
	}
}

func (n *matchNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Bool, rows: ev.rows, valid: a.valid, bits: ev.zeros(ev.rows)}
	live := ev.liveRows(sel, a)
	if len(n.must) > 0 {
		candidates := ev.zeros(ev.rows)
		findContaining(candidates, a, n.must, live)
		if n.only {
			out.bits = candidates
			return out
		}
		live = candidates
	}
	for i := range eachRow(live, ev.rows) {
		if n.re.Match(a.str(i)) {
			out.bits.set(i)
		}
	}
	return out
}

const (
	// maxDynamic is the maximum length of a regular expression that is not a constant: each row may have its own to compile.
	maxDynamic = 256
	// maxRepeats is the maximum repetition count of such an expression, multiplied over nested repetitions.
	maxRepeats = 1000
)

// dynamicMatchNode is a match with an expression that is not a constant. An invalid or too large expression is an error of the
// row.
type dynamicMatchNode struct{ a, b exprNode }

func (n *dynamicMatchNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	// Rows often have the same expression as the previous row.
	last, known := "", false
	var re *regexp.Regexp
	test := &testNode{args: []exprNode{n.a, n.b}, test: func(args []*columnVec, i int) (bool, bool) {
		if text := strAt(args[1], i); !known || last != string(text) {
			last, known = string(text), true
			re = compileDynamic(last)
		}
		if re == nil {
			return false, false
		}
		return re.Match(strAt(args[0], i)), true
	}}
	return test.evalRows(ev, sel)
}

func compileDynamic(text string) *regexp.Regexp {
	if len(text) > maxDynamic {
		return nil
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil || maxRepeat(tree) > maxRepeats {
		return nil
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil
	}
	return re
}

// maxRepeat returns how often the most repeated part appears in the program.
func maxRepeat(re *syntax.Regexp) int {
	most := 1
	for _, sub := range re.Sub {
		most = max(most, maxRepeat(sub))
	}
	if re.Op == syntax.OpRepeat {
		most *= max(re.Min, re.Max, 1)
	}
	return most
}
