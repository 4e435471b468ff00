package vector

import (
	"bytes"
	"unicode/utf8"

	"scribe/columnar/schema"
)

// cutNode returns a piece of a text without copying it.
type cutNode struct {
	t    *schema.Type
	args []exprNode
	// cut returns the range of the piece in s, the text of row i of the first argument. If ok is false, the row has an error.
	cut func(s []byte, args []*columnVec, i int) (from, to int, ok bool)
}

func (n *cutNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	args := ev.evalArgs(sel, n.args...)
	a := args[0]
	out := ev.newResult(n.t, args...)
	out.data = a.data
	out.begin, out.end = takeValues[int32](ev.scratchMemory, ev.rows), takeValues[int32](ev.scratchMemory, ev.rows)
	live := ev.liveRows(sel, args...)
	if live != nil {
		clear(out.begin)
		clear(out.end)
	}
	var bad bitmap
	at := a.indexMask()
	for i := range eachRow(live, ev.rows) {
		from, to, ok := n.cut(a.str(i&at), args, i)
		base := a.begin[i&at]
		out.begin[i], out.end[i] = base+int32(from), base+int32(to)
		if !ok {
			bad = ev.markRow(bad, i)
		}
	}
	return ev.failRows(out, bad, sel)
}

// valueAt returns an argument's value in a row.
func valueAt[T fixedValue](v *columnVec, i int) T { return valuesOf[T](v)[i&v.indexMask()] }

func strAt(v *columnVec, i int) []byte { return v.str(i & v.indexMask()) }

// skipChars returns the offset after n characters of s, or its end if it has fewer.
func skipChars(s []byte, n int) (at int) {
	for ; at < len(s) && n > 0; n-- {
		if s[at] < utf8.RuneSelf {
			at++
		} else {
			_, size := utf8.DecodeRune(s[at:])
			at += size
		}
	}
	return at
}

func cutSubstring(s []byte, args []*columnVec, i int) (from, to int, ok bool) {
	first := int(valueAt[int32](args[1], i))
	last := len(s) + 1 // in characters: a text has at most as many as bytes
	if len(args) == 3 {
		n := int(valueAt[int32](args[2], i))
		if n < 0 {
			return 0, 0, false
		}
		last = min(first+n, last)
	}
	first = max(first, 1)
	if last <= first {
		return 0, 0, true
	}
	from = skipChars(s, first-1)
	return from, from + skipChars(s[from:], last-first), true
}

func cutPart(s []byte, args []*columnVec, i int) (from, to int, ok bool) {
	by, n := strAt(args[1], i), int(valueAt[int32](args[2], i))
	switch {
	case n == 0:
		return 0, 0, false
	case len(by) == 0:
		if n == 1 || n == -1 {
			return 0, len(s), true
		}
		return 0, 0, true
	case n < 0:
		if n += bytes.Count(s, by) + 2; n < 1 {
			return 0, 0, true
		}
	}
	for ; n > 1; n-- {
		p := bytes.Index(s[from:], by)
		if p < 0 {
			return 0, 0, true
		}
		from += p + len(by)
	}
	if p := bytes.Index(s[from:], by); p >= 0 {
		return from, from + p, true
	}
	return from, len(s), true
}

// cutTrim returns the trim function for the ends given by where.
func cutTrim(where string) func(s []byte, args []*columnVec, i int) (from, to int, ok bool) {
	return func(s []byte, args []*columnVec, i int) (from, to int, ok bool) {
		set, rest := string(strAt(args[1], i)), s
		if where != "trailing" {
			rest = bytes.TrimLeft(rest, set)
		}
		from = len(s) - len(rest)
		if where != "leading" {
			rest = bytes.TrimRight(rest, set)
		}
		return from, from + len(rest), true
	}
}

// lengthNode counts characters.
type lengthNode struct{ a exprNode }

func (n lengthNode) evalRows(ev *programRun, sel bitmap) *columnVec {
	a := ev.evalArgs(sel, n.a)[0]
	out := &columnVec{kind: schema.Int32, rows: ev.rows, valid: a.valid}
	lengths := takeValues[int32](ev.scratchMemory, ev.rows)
	setValues(out, lengths)
	if a.kind == schema.Binary || a.dense && ev.rows > 0 && isASCII(a.data[a.begin[0]:a.end[ev.rows-1]]) {
		for i, e := range a.end {
			lengths[i] = e - a.begin[i]
		}
		return out
	}
	live := ev.liveRows(sel, a)
	if live != nil {
		clear(lengths)
	}
	for i := range eachRow(live, ev.rows) {
		lengths[i] = int32(utf8.RuneCount(a.str(i)))
	}
	return out
}

// positionOf computes position().
func positionOf(args []*columnVec, i int) (int32, bool) {
	s := strAt(args[0], i)
	if at := bytes.Index(s, strAt(args[1], i)); at >= 0 {
		return int32(utf8.RuneCount(s[:at]) + 1), true
	}
	return 0, true
}

func appendConcat(b *textBuilder, args []*columnVec, i int) bool {
	total := 0
	for _, a := range args {
		if !a.isNull(i) {
			total += len(strAt(a, i))
		}
	}
	if !b.fitsBytes(total) {
		return false
	}
	for _, a := range args {
		if !a.isNull(i) {
			b.data = append(b.data, strAt(a, i)...)
		}
	}
	return true
}

func appendReplace(b *textBuilder, args []*columnVec, i int) bool {
	s, old, by := strAt(args[0], i), strAt(args[1], i), strAt(args[2], i)
	if len(old) == 0 {
		if b.fitsBytes(len(s)) {
			b.data = append(b.data, s...)
		}
		return true
	}
	for {
		p := bytes.Index(s, old)
		if p < 0 {
			p = len(s)
		}
		if !b.fitsBytes(p + len(by)) {
			return false
		}
		b.data = append(b.data, s[:p]...)
		if p == len(s) {
			return true
		}
		b.data = append(b.data, by...)
		s = s[p+len(old):]
	}
}
