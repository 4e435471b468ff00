package jsonrows

import (
	"encoding/json"
	"math"
	"slices"
	"sync"
	"unicode/utf8"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/jsonscan"
)

// whyNotJSON is the reason for a text that is not a JSON value.
const whyNotJSON = "the text is not a value of JSON"

var walkers = sync.Pool{New: func() any { return new(rowWalker) }}

// keepIndex is the number of bytes up to which a walker keeps the memory of its index for reuse.
const keepIndex = 1 << 20

// AppendValue appends a JSON value of any type. If it does not fit, AppendValue appends nothing and returns why.
func AppendValue(c *column.Buffer, raw []byte) (why string) {
	w := walkers.Get().(*rowWalker)
	defer func() {
		w.b = nil
		w.x.Release(keepIndex)
		walkers.Put(w)
	}()
	w.b, w.limit = raw, len(raw)
	w.x.Reset(raw)
	at := jsonscan.SkipSpace(raw, 0, len(raw))
	if at == len(raw) || !utf8.Valid(raw) {
		return whyNotJSON
	}
	end := w.skipValue(at, 0)
	if end < 0 {
		return w.fault.Why
	}
	if jsonscan.SkipSpace(raw, end, len(raw)) != len(raw) {
		return whyNotJSON
	}
	n := c.Len
	if _, fault := w.appendValueAt(c, at); !fault.OK() {
		c.Truncate(n)
		return fault.Why
	}
	return ""
}

// appendValueAt appends the value at at. The caller has checked its structure and encoding. It returns the position after the
// value, or a fault if it does not fit. After a fault the column contains an unfinished value and must be truncated.
func (w *rowWalker) appendValueAt(c *column.Buffer, at int) (end int, fault jsonscan.Fault) {
	b := w.b
	why := ""
	switch first := b[at]; {
	case first == '"':
		quote, escaped := w.x.StringEnd(at+1, w.limit)
		if quote < 0 {
			return 0, w.x.StringFault(at+1, w.limit)
		}
		end = quote + 1
		if isText(c.Type.Kind) {
			if !escaped {
				c.AppendPart(b, at+1, quote)
				return end, fault
			}
			return end, w.unescapeInto(c, at+1, quote)
		}
		text := b[at+1 : quote]
		if escaped {
			if text, fault = w.unescapeText(at+1, quote); !fault.OK() {
				return 0, fault
			}
		}
		why = column.PutUTF8(c, text)
	case first == '{' && c.Type.Kind == schema.Struct:
		return w.structInto(c, at+1)
	case first == '{' && c.Type.Kind == schema.Map:
		return w.mapInto(c, at+1)
	case first == '[' && c.Type.Kind == schema.List:
		return w.listInto(c, at+1)
	case first == '{' || first == '[':
		if end, fault = w.x.Skip(at, w.limit, 0); !fault.OK() {
			return 0, fault
		}
		why = containerText(c, b[at:end])
	default:
		if c.Type.Kind == schema.Int64 {
			if v, end, ok := jsonscan.ShortInteger(b, at, w.limit); ok {
				c.AppendInt64(v)
				return end, fault
			}
		}
		end = jsonscan.ScalarEnd(b, at, w.limit)
		why = scalarInto(c, b[at:end])
	}
	if why != "" {
		return 0, jsonscan.Fault{At: at, Why: why}
	}
	return end, jsonscan.Fault{}
}

// unescapeText resolves the escapes of a string. The result is valid until the next call.
func (w *rowWalker) unescapeText(at, end int) ([]byte, jsonscan.Fault) {
	text, fault := jsonscan.AppendUnescaped(w.scratch[:0], w.b[at:end])
	if !fault.OK() {
		fault.At += at
		return nil, fault
	}
	w.scratch = text
	return text, fault
}

// unescapeInto appends a string with escapes to a column of texts.
func (w *rowWalker) unescapeInto(c *column.Buffer, at, end int) jsonscan.Fault {
	fault := c.AppendUnescaped(w.b[at:end])
	if !fault.OK() {
		fault.At += at
	}
	return fault
}

// containerText appends the text of an object or list to a column of strings.
func containerText(c *column.Buffer, raw []byte) (why string) {
	switch {
	case c.Type.Kind != schema.String:
		return column.WhyNot(c.Type.Kind)
	case !json.Valid(raw): // the structure was checked, the content was not
		return whyNotJSON
	}
	c.AppendString(raw)
	return ""
}

// nextElement moves to the next element of a list or object. at is after the opening bracket if first is set, otherwise after an
// element. At the closing bracket it returns -1 and the position after the bracket as end.
func (w *rowWalker) nextElement(at int, first bool) (next, end int) {
	at = jsonscan.SkipSpace(w.b, at, w.limit)
	if at >= w.limit {
		return -1, at
	}
	if c := w.b[at]; c == ']' || c == '}' {
		return -1, at + 1
	}
	if !first {
		at = jsonscan.SkipSpace(w.b, at+1, w.limit)
	}
	if at >= w.limit {
		return -1, at
	}
	return at, at
}

func (w *rowWalker) listInto(c *column.Buffer, at int) (end int, fault jsonscan.Fault) {
	items := c.Children[0]
	for first := true; ; first = false {
		if at, end = w.nextElement(at, first); at < 0 {
			c.AppendList()
			return end, fault
		}
		if at, fault = w.appendValueAt(items, at); !fault.OK() {
			return 0, fault
		}
	}
}

// manyKeys is the number of keys from which a map's keys are kept in a set.
const manyKeys = 16

// mapInto appends the members of an object. The first of duplicate keys counts.
func (w *rowWalker) mapInto(c *column.Buffer, at int) (end int, fault jsonscan.Fault) {
	keys, values := c.Children[0], c.Children[1]
	var known map[string]struct{}
	start := keys.Len
	for first := true; ; first = false {
		if at, end = w.nextElement(at, first); at < 0 {
			c.AppendList()
			return end, fault
		}
		quote, escaped := w.x.StringEnd(at+1, w.limit)
		if quote < 0 {
			return 0, w.x.StringFault(at+1, w.limit)
		}
		key := w.b[at+1 : quote]
		if escaped {
			if key, fault = w.unescapeText(at+1, quote); !fault.OK() {
				return 0, fault
			}
		}
		if at = w.behindColon(quote + 1); at >= w.limit {
			return 0, jsonscan.Fault{At: at, Why: jsonscan.WantValue}
		}
		if keys.Len-start == manyKeys && known == nil {
			known = make(map[string]struct{}, 2*manyKeys)
			for i := start; i < keys.Len; i++ {
				known[string(keys.Text(i))] = struct{}{}
			}
		}
		if hasKey(keys, key, start, known) {
			if at = w.skipValue(at, 0); at < 0 {
				return 0, w.fault
			}
			continue
		}
		if known != nil {
			known[string(key)] = struct{}{}
		}
		keys.AppendString(key)
		if at, fault = w.appendValueAt(values, at); !fault.OK() {
			return 0, fault
		}
	}
}

// hasKey reports whether a key is in a column at index start or above.
func hasKey(c *column.Buffer, key []byte, start int, known map[string]struct{}) bool {
	if known != nil {
		_, ok := known[string(key)]
		return ok
	}
	for i := start; i < c.Len; i++ {
		if string(c.Text(i)) == string(key) {
			return true
		}
	}
	return false
}

// behindColon skips the next colon and returns the position of the value after it.
func (w *rowWalker) behindColon(at int) int {
	at = jsonscan.SkipSpace(w.b, at, w.limit)
	return jsonscan.SkipSpace(w.b, at+1, w.limit)
}

// sourcePosition is the position of the best source found so far for a struct's field.
type sourcePosition struct {
	source int // math.MaxInt if none was found
	at     int
	astray bool // a value on the path is not an object
	// nulls are the sources with null, for a field that is not nullable. They do not count as values, and neither do later
	// duplicates of their keys.
	nulls []int
}

// structMemo is what was learned about the values of a column of structs.
type structMemo struct {
	shape *objectShape
	found []sourcePosition // by field; nil if no field has aliases
}

func newStructMemo(c *column.Buffer) *structMemo {
	m := &structMemo{shape: newShape(structNode(c.Type), nil)}
	if slices.ContainsFunc(c.Type.Fields, func(f schema.Field) bool { return len(f.Aliases) > 0 }) {
		m.found = make([]sourcePosition, len(c.Children))
	}
	return m
}

// structInto appends an object to a column of structs.
func (w *rowWalker) structInto(c *column.Buffer, at int) (end int, fault jsonscan.Fault) {
	memo, _ := c.Memo.(*structMemo)
	if memo == nil {
		memo = newStructMemo(c)
		c.Memo = memo
	}
	for i := range memo.found {
		memo.found[i].source, memo.found[i].nulls = math.MaxInt, memo.found[i].nulls[:0]
	}
	begin := at - 1
	if end, fault = w.appendMembers(c, memo, memo.shape, at); !fault.OK() {
		return 0, fault
	}
	for i, child := range c.Children {
		switch {
		case child.Len > c.Len:
			continue
		case memo.found == nil || memo.found[i].source == math.MaxInt:
			if why := child.AppendAbsent(); why != "" {
				fault = jsonscan.Fault{At: begin, Why: why}
			}
		case memo.found[i].astray:
			fault = jsonscan.Fault{At: memo.found[i].at, Why: whyPath}
		default:
			_, fault = w.appendField(child, memo.found[i].at)
		}
		if !fault.OK() {
			return 0, fault
		}
	}
	c.AppendStruct()
	return end, fault
}

// appendMembers appends an object's values for the fields of a struct.
func (w *rowWalker) appendMembers(c *column.Buffer, memo *structMemo, s *objectShape, at int) (end int, fault jsonscan.Fault) {
	s.objects++
	number := s.objects
	prev := &s.start
	for first := true; ; first = false {
		if at, end = w.nextElement(at, first); at < 0 {
			return end, fault
		}
		now, kid, value := s.readKey(w, at, prev)
		if value < 0 {
			return 0, w.fault
		}
		prev = now
		switch {
		case kid < 0:
			at = w.skipValue(value, 0)
		case s.below[kid] == nil:
			at, fault = w.takeField(c, memo, &s.node.children[kid], value)
		case s.below[kid].seen == number:
			at = w.skipValue(value, 0)
		case value < w.limit && w.b[value] == '{':
			s.below[kid].seen = number
			at, fault = w.appendMembers(c, memo, s.below[kid], value+1)
		default:
			s.below[kid].seen = number
			if at = w.skipValue(value, 0); at >= 0 && string(w.b[value:at]) != "null" {
				fault = memo.markAstray(c, s.below[kid], value)
			}
		}
		if !fault.OK() {
			return 0, fault
		}
		if at < 0 {
			return 0, w.fault
		}
	}
}

// markAstray records that no field below a node can be found, since the value at at is not an object.
func (m *structMemo) markAstray(c *column.Buffer, s *objectShape, at int) jsonscan.Fault {
	for i := range s.node.children {
		k := &s.node.children[i]
		if s.below[i] != nil {
			if fault := m.markAstray(c, s.below[i], at); !fault.OK() {
				return fault
			}
			continue
		}
		if len(c.Type.Fields[k.field].Aliases) == 0 {
			return jsonscan.Fault{At: at, Why: whyPath}
		}
		if found := &m.found[k.field]; k.alternative < found.source {
			found.source, found.at, found.astray = k.alternative, at, true
		}
	}
	return jsonscan.Fault{}
}

// takeField handles the value of a source of a struct's field. It appends the value at once if the field has only one source. The
// first of duplicate keys counts.
func (w *rowWalker) takeField(c *column.Buffer, memo *structMemo, k *keyChild, at int) (end int, fault jsonscan.Fault) {
	to := c.Children[k.field]
	switch {
	case to.Len > c.Len: // already has its value
	case len(c.Type.Fields[k.field].Aliases) == 0:
		return w.appendField(to, at)
	default:
		w.noteCandidate(&memo.found[k.field], k.alternative, at, to.Nullable)
	}
	if at = w.skipValue(at, 0); at < 0 {
		return 0, w.fault
	}
	return at, fault
}

// noteCandidate records the value of one of a field's sources if it takes precedence over the one found so far.
func (w *rowWalker) noteCandidate(found *sourcePosition, source, at int, nullable bool) {
	if source >= found.source || slices.Contains(found.nulls, source) {
		return
	}
	if _, null := w.isNullAt(at); null && !nullable {
		found.nulls = append(found.nulls, source)
		return
	}
	found.source, found.at, found.astray = source, at, false
}

// isNullAt reports whether null is at a position, and where it ends.
func (w *rowWalker) isNullAt(at int) (end int, null bool) {
	end = jsonscan.ScalarEnd(w.b, at, w.limit)
	return end, string(w.b[at:end]) == "null"
}

// appendField appends the value of a struct's field.
func (w *rowWalker) appendField(to *column.Buffer, at int) (end int, fault jsonscan.Fault) {
	if !to.Nullable {
		if end, null := w.isNullAt(at); null {
			if to.AppendDefault == nil {
				return 0, jsonscan.Fault{At: at, Why: column.WhyNull}
			}
			to.AppendDefault(to)
			return end, fault
		}
	}
	return w.appendValueAt(to, at)
}

// DefaultOf returns a function that appends a field's default. It returns nil if the field has no default, or one that does not
// fit.
func DefaultOf(f *schema.Field) func(*column.Buffer) {
	if f.Default == "" {
		return nil
	}
	one := column.NewBuffer(&f.Type, true, DefaultOf)
	text := []byte(f.Default)
	if why := AppendValue(one, text); why != "" || one.HasNulls() {
		return nil
	}
	if repeat := one.RepeatFirst(); repeat != nil {
		return repeat
	}
	return func(c *column.Buffer) { AppendValue(c, text) }
}

// scalarInto appends a JSON value that has neither quotes nor brackets.
func scalarInto(c *column.Buffer, text []byte) (why string) {
	switch jsonscan.Scalar(text) {
	case jsonscan.Null:
		c.AppendNull()
		return ""
	case jsonscan.True, jsonscan.False:
		return column.PutWrittenBool(c, text[0] == 't', text)
	case jsonscan.Integer, jsonscan.Fraction:
		return column.PutNumber(c, text)
	default:
		return whyMalformed(text)
	}
}

// whyMalformed returns the error text for a malformed scalar.
func whyMalformed(text []byte) string {
	if len(text) > 0 && (text[0]-'0' <= 9 || text[0] == '-' || text[0] == '+' || text[0] == '.') {
		return jsonscan.BadNumber
	}
	return jsonscan.BadWord
}
