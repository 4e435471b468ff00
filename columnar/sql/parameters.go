package sql

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Parameter is the value of a parameter, ? or $1.
type Parameter struct {
	// Type is the name of the type, as in CAST, or empty for a text whose type follows from where the parameter stands, as that of
	// a text constant.
	Type string
	Text string
	Null bool
}

// NumberType is the type of a parameter that is a number as it would be written in the text of a query.
const NumberType = "number"

// boundParameters are the values of parameters while a text is parsed.
type boundParameters struct {
	values []Parameter
	// asked is the greatest number of a parameter. If values may be missing, they are null.
	asked     int
	mayMiss   bool
	questions bool // ? was used
	numbers   bool // $1 was used
}

// BindParameters returns the canonical text of a query in which constants stand for its parameters: ? in their order, or $1, $2 and so
// on. Without parameters it is the text as it is. Errors are of type *[Error].
func BindParameters(text string, values []Parameter) (string, error) {
	if len(values) > MaxParameters {
		return "", queryText{}.Errorf(0, "", "%d values of parameters are given, the limit is %d", len(values), MaxParameters)
	}
	show, err := parseText(text, nil, (*queryParser).parseShow)
	switch {
	case err != nil:
		return "", err
	case show != nil && len(values) > 0:
		return "", queryText{text}.Errorf(len(text), "", "%s has no parameters, but %d values are given", show, len(values))
	case show != nil:
		return text, nil
	}
	b := &boundParameters{values: values}
	q, err := parseText(text, b, (*queryParser).parseQuery)
	switch {
	case err != nil:
		return "", err
	case b.asked < len(values):
		return "", q.Errorf(len(text), "", "the query has %d parameters, but %d values are given", b.asked, len(values))
	case b.asked == 0:
		return text, nil
	}
	bound := q.String()
	if len(bound) > MaxText {
		return "", queryText{}.Errorf(0, "", "query text with the values of its parameters is %d bytes long, the limit is %d", len(bound), MaxText)
	}
	return bound, nil
}

// CountParameters returns the number of a query's parameters, and its text with null for each of them, from which the columns of its answer
// follow. Errors are of type *[Error].
func CountParameters(text string) (n int, withNulls string, err error) {
	b := &boundParameters{mayMiss: true}
	q, err := parseText(text, b, (*queryParser).parseQuery)
	if err != nil || b.asked == 0 {
		return 0, text, err
	}
	return b.asked, q.String(), nil
}

// parseParameter parses a parameter and returns its value. It returns nil if there is none.
func (p *queryParser) parseParameter() Expr {
	t := p.token()
	if t.kind != parameter {
		return nil
	}
	b := p.parameters
	p.refuseIf(b == nil, "Give values with scribe query --param, param= over HTTP, or a prepared statement of Flight SQL.", "the parameter "+ClipText(t.text)+" has no value")
	n := b.asked + 1
	if t.text == "?" {
		b.questions = true
	} else {
		b.numbers = true
		var err error
		n, err = strconv.Atoi(t.text[1:])
		p.refuseIf(err != nil || n < 1 || n > MaxParameters, "", "parameters are $1 to $"+strconv.Itoa(MaxParameters))
	}
	p.refuseIf(b.questions && b.numbers, "Use one of them.", "a query has both ? and $1")
	p.refuseIf(n > MaxParameters, "", "the query has more than "+strconv.Itoa(MaxParameters)+" parameters")
	b.asked = max(b.asked, n)
	if n > len(b.values) {
		p.refuseIf(!b.mayMiss, "", "the parameter "+t.text+" has no value: "+strconv.Itoa(len(b.values))+" are given")
		p.i++
		return &Null{Node: Node{At: t.pos}}
	}
	e := p.constantOf(b.values[n-1], t)
	p.i++
	return e
}

// constantOf returns the constant that a parameter stands for.
func (p *queryParser) constantOf(v Parameter, t *queryToken) Expr {
	at := Node{At: t.pos}
	p.refuseIf(strings.IndexByte(v.Text, 0) >= 0 || !utf8.ValidString(v.Text), "", "the value of the parameter "+t.text+" has a zero byte or is not UTF-8")
	switch {
	case v.Null:
		return &Null{Node: at}
	case v.Type == "":
		return &String{Node: at, Value: v.Text}
	case v.Type == NumberType:
		digits, minus := strings.CutPrefix(v.Text, "-")
		tokens := tokenizeNumber(digits)
		p.refuseIf(len(tokens) != 2 || tokens[0].kind != number, "", "the value "+ClipText(v.Text)+" of the parameter "+t.text+" is not a number")
		e := Expr(&Number{Node: at, Text: tokens[0].text})
		if minus {
			return p.nodeOver(&Unary{Node: at, Op: Minus, X: e}, e)
		}
		return e
	case v.Type == "boolean":
		return &Bool{Node: at, Value: v.Text == "true"}
	default:
		return &Typed{Node: at, Type: Type{Name: v.Type, Precision: -1, Scale: -1}, Value: v.Text}
	}
}

// tokenizeNumber splits the text of a number into tokens; nil if it has a mistake.
func tokenizeNumber(text string) (tokens []queryToken) {
	defer func() {
		if _, ok := recover().(*Error); ok {
			tokens = nil
		}
	}()
	return tokenize(text)
}
