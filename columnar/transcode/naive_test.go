package transcode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
)

// The reference: rows by a parser that looks at one byte after the other, values by encoding/json and math/big.

// naiveValue is a value of which the structure is sound: one of text (quotes included), scalar, members or items.
type naiveValue struct {
	kind    byte // " { [ or s
	raw     string
	keys    []string // unescaped; ok[i] says whether the escapes are sound
	keyOK   []bool
	rawKeys []string
	values  []naiveValue
}

type naiveParser struct {
	b     string
	at    int
	depth int
}

// naiveRow parses a row; false means damage.
func naiveRow(row string) (naiveValue, bool) {
	if !utf8.ValidString(row) {
		return naiveValue{}, false
	}
	p := &naiveParser{b: strings.TrimPrefix(row, "\ufeff")}
	p.space()
	if p.at == len(p.b) || p.b[p.at] != '{' {
		return naiveValue{}, false
	}
	v, ok := p.value()
	p.space()
	return v, ok && p.at == len(p.b)
}

func (p *naiveParser) space() {
	for p.at < len(p.b) && strings.IndexByte(" \t\r\n", p.b[p.at]) >= 0 {
		p.at++
	}
}

func (p *naiveParser) peek() byte {
	if p.at < len(p.b) {
		return p.b[p.at]
	}
	return 0
}

func (p *naiveParser) value() (v naiveValue, ok bool) {
	start := p.at
	defer func() { v.raw = p.b[start:p.at] }()
	switch c := p.peek(); c {
	case '"':
		v.kind = '"'
		ok = p.text()
	case '{', '[':
		v.kind = c
		if p.depth++; p.depth > 128 {
			return v, false
		}
		ok = p.container(&v, c+2)
		p.depth--
	default:
		v.kind = 's'
		for p.at < len(p.b) && p.b[p.at] > ' ' && strings.IndexByte(`{}[]:,"\`, p.b[p.at]) < 0 {
			p.at++
		}
		ok = p.at > start
	}
	return v, ok
}

func (p *naiveParser) text() bool {
	for p.at++; p.at < len(p.b); p.at++ {
		c := p.b[p.at]
		if c == '"' {
			p.at++
			return true
		}
		if c == '\\' {
			p.at++
			c = p.peek()
		}
		if c < ' ' {
			return false
		}
	}
	return false
}

func (p *naiveParser) container(v *naiveValue, end byte) bool {
	p.at++
	p.space()
	if p.peek() == end {
		p.at++
		return true
	}
	for {
		if end == '}' {
			start := p.at
			if p.peek() != '"' || !p.text() {
				return false
			}
			raw := p.b[start:p.at]
			key, ok := naiveText(raw)
			v.keys, v.keyOK, v.rawKeys = append(v.keys, key), append(v.keyOK, ok), append(v.rawKeys, raw)
			if p.space(); p.peek() != ':' {
				return false
			}
			p.at++
			p.space()
		}
		item, ok := p.value()
		if !ok {
			return false
		}
		v.values = append(v.values, item)
		p.space()
		switch p.peek() {
		case end:
			p.at++
			return true
		case ',':
			p.at++
			p.space()
		default:
			return false
		}
	}
}

// naiveText is a string in quotes as encoding/json reads it.
func naiveText(raw string) (text string, ok bool) {
	err := json.Unmarshal([]byte(raw), &text)
	return text, err == nil
}

// member is the first member with a key.
func (v *naiveValue) member(key string) *naiveValue {
	for i, k := range v.keys {
		if v.keyOK[i] && k == key {
			return &v.values[i]
		}
	}
	return nil
}

// misfit is a value that does not fit.
type misfit struct{}

// at returns what stands at the first of some paths where something does: nil for nothing. Null is something only if it is a value.
func (v *naiveValue) at(paths [][]string, nullable bool) any {
	for _, path := range paths {
		here := v
		for i, key := range path {
			if here = here.member(key); here == nil || i == len(path)-1 {
				break
			}
			if here.kind != '{' {
				if here.raw == "null" {
					here = nil
					break
				}
				return misfit{}
			}
		}
		if here != nil && (nullable || here.raw != "null") {
			return here
		}
	}
	return nil
}

// naiveField is the value of a field in an object: nil, misfit{}, or what naiveConvert returns.
func naiveField(f *schema.Field, object *naiveValue) any {
	switch v := object.at(f.Sources(), f.Nullable).(type) {
	case *naiveValue:
		if v.raw == "null" {
			return nil
		}
		return naiveConvert(&f.Type, v)
	case misfit:
		return v
	default:
		if f.Nullable && f.Default == "" {
			return nil
		}
	}
	if f.Default == "" {
		return misfit{}
	}
	p := &naiveParser{b: f.Default}
	v, _ := p.value()
	return naiveConvert(&f.Type, &v)
}

// naiveConvert is a value in a type: nil for null, misfit{}, or a text that says what it is.
func naiveConvert(t *schema.Type, v *naiveValue) any {
	if v.raw == "null" {
		return nil
	}
	if !json.Valid([]byte(v.raw)) && v.kind != '{' && v.kind != '[' {
		return misfit{}
	}
	number := v.kind == 's' && v.raw != "true" && v.raw != "false"
	text, _ := naiveText(v.raw)
	switch t.Kind {
	case schema.Bool:
		if v.raw == "true" || v.raw == "false" {
			return v.raw
		}
	case schema.Int32, schema.Int64, schema.Uint64:
		if number {
			return naiveInteger(t.Kind, v.raw)
		}
	case schema.Float64:
		if number {
			if f, err := strconv.ParseFloat(v.raw, 64); err == nil {
				return floatText(f)
			}
		}
	case schema.Decimal:
		if number {
			return naiveDecimal(t, v.raw)
		}
	case schema.String, schema.Binary:
		switch {
		case v.kind == '"':
			return text
		case t.Kind == schema.String && json.Valid([]byte(v.raw)):
			return v.raw
		}
	case schema.Timestamp, schema.Date:
		if v.kind == '"' || number {
			if number {
				text = v.raw
			}
			return naiveInstant(t, text, number)
		}
	case schema.List:
		if v.kind == '[' {
			return naiveList(t, v)
		}
	case schema.Map:
		if v.kind == '{' {
			return naiveMap(t, v)
		}
	case schema.Struct:
		if v.kind == '{' {
			return naiveStruct(t, v)
		}
	default:
	}
	return misfit{}
}

func naiveInteger(k schema.Kind, raw string) any {
	r, ok := rational(raw)
	if !ok || !r.IsInt() {
		return misfit{}
	}
	low, high := big.NewInt(math.MinInt64), new(big.Int).SetUint64(math.MaxInt64)
	switch k {
	case schema.Int32:
		low, high = big.NewInt(math.MinInt32), big.NewInt(math.MaxInt32)
	case schema.Uint64:
		low, high = big.NewInt(0), new(big.Int).SetUint64(math.MaxUint64)
	default:
	}
	if r.Num().Cmp(low) < 0 || r.Num().Cmp(high) > 0 {
		return misfit{}
	}
	return r.Num().String()
}

// rational is a number, if its exponent is one that a test can bear.
func rational(raw string) (*big.Rat, bool) {
	if i := strings.IndexAny(raw, "eE"); i >= 0 {
		if e, err := strconv.Atoi(raw[i+1:]); err != nil || e > 400 || e < -400 {
			zero := strings.Trim(raw[:i], "-0.") == ""
			return new(big.Rat), zero
		}
	}
	return new(big.Rat).SetString(raw)
}

func naiveDecimal(t *schema.Type, raw string) any {
	r, ok := rational(raw)
	if !ok {
		return misfit{}
	}
	ten := func(n int32) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }
	r.Mul(r, new(big.Rat).SetInt(ten(t.Scale)))
	if !r.IsInt() || r.Num().CmpAbs(ten(t.Precision)) >= 0 {
		return misfit{}
	}
	return r.Num().String()
}

func naiveInstant(t *schema.Type, text string, number bool) any {
	for _, f := range t.TimeFormats() {
		if _, unix := f.Unix(); number && !unix {
			continue
		}
		if v, ok := f.Parse(text); ok {
			if t.Kind == schema.Date {
				day, ok := column.DayOf(v)
				if !ok {
					return misfit{}
				}
				v = int64(day)
			}
			return strconv.FormatInt(v, 10)
		}
	}
	return misfit{}
}

func naiveList(t *schema.Type, v *naiveValue) any {
	var out []string
	for i := range v.values {
		item := naiveConvert(t.Elem, &v.values[i])
		if item == (misfit{}) {
			return item
		}
		out = append(out, show(item))
	}
	return "[" + strings.Join(out, " ") + "]"
}

func naiveMap(t *schema.Type, v *naiveValue) any {
	var out, known []string
	for i, k := range v.keys {
		if !v.keyOK[i] {
			return misfit{}
		}
		if slices.Contains(known, k) {
			continue
		}
		known = append(known, k)
		item := naiveConvert(t.Elem, &v.values[i])
		if item == (misfit{}) {
			return item
		}
		out = append(out, k+"="+show(item))
	}
	return "{" + strings.Join(out, " ") + "}"
}

func naiveStruct(t *schema.Type, v *naiveValue) any {
	var out []string
	for i := range t.Fields {
		item := naiveField(&t.Fields[i], v)
		if item == (misfit{}) {
			return item
		}
		out = append(out, show(item))
	}
	return "(" + strings.Join(out, " ") + ")"
}

func show(v any) string {
	if v == nil {
		return "null"
	}
	return fmt.Sprint(v)
}

func floatText(f float64) string { return strconv.FormatUint(math.Float64bits(f), 16) }

// cell is a value of an array as naiveConvert writes it.
func cell(t *schema.Type, a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	switch a := a.(type) {
	case *array.Boolean:
		return strconv.FormatBool(a.Value(i))
	case *array.Int32:
		return strconv.Itoa(int(a.Value(i)))
	case *array.Int64:
		return strconv.FormatInt(a.Value(i), 10)
	case *array.Uint64:
		return strconv.FormatUint(a.Value(i), 10)
	case *array.Float64:
		return floatText(a.Value(i))
	case *array.Decimal128:
		return a.Value(i).BigInt().String()
	case *array.Timestamp:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.Date32:
		return strconv.FormatInt(int64(a.Value(i)), 10)
	case *array.String:
		return a.Value(i)
	case *array.Binary:
		return string(a.Value(i))
	case *array.Dictionary:
		return a.Dictionary().(*array.String).Value(a.GetValueIndex(i))
	case *array.Map:
		var out []string
		from, to := a.ValueOffsets(i)
		for k := from; k < to; k++ {
			out = append(out, cell(&tString, a.Keys(), int(k))+"="+cell(t.Elem, a.Items(), int(k)))
		}
		return "{" + strings.Join(out, " ") + "}"
	case *array.List:
		var out []string
		from, to := a.ValueOffsets(i)
		for k := from; k < to; k++ {
			out = append(out, cell(t.Elem, a.ListValues(), int(k)))
		}
		return "[" + strings.Join(out, " ") + "]"
	case *array.Struct:
		var out []string
		for k := range t.Fields {
			out = append(out, cell(&t.Fields[k].Type, a.Field(k), i))
		}
		return "(" + strings.Join(out, " ") + ")"
	}
	panic(fmt.Sprintf("no cells of type %s", a.DataType()))
}

// naiveRest is the catch-all column, decoded; nil if it is null.
func naiveRest(s *schema.Schema, row *naiveValue) map[string]any {
	declared := map[string]bool{}
	for i := range s.Fields {
		for _, path := range s.Fields[i].Sources() {
			declared[path[0]] = true
		}
	}
	var rest map[string]any
	for i, k := range row.keys {
		if !row.keyOK[i] {
			k = row.rawKeys[i][1 : len(row.rawKeys[i])-1]
		} else if declared[k] {
			continue
		}
		if _, ok := rest[k]; ok {
			continue
		}
		if rest == nil {
			rest = map[string]any{}
		}
		rest[k] = decodeRest(row.values[i].raw)
	}
	return rest
}

func decodeRest(raw string) any {
	if v, ok := decoded([]byte(raw)); ok {
		return v
	}
	return raw
}

func decoded(raw []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	ok = json.Valid(raw) && d.Decode(&v) == nil
	return v, ok
}
