package schema

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"scribe/columnar/near"
)

// dictionaryName is the type name of a string that Arrow stores as dictionary codes.
const dictionaryName = "dictionary"

var typeNames = []string{
	"bool", "int32", "int64", "uint64", "float64", "decimal", "string", dictionaryName, "binary", "date", "timestamp", "list", "struct", "map",
}

// otherNames maps type names of other systems to ours, for hints.
var otherNames = map[string]string{
	"boolean": "bool", "int": "int64", "integer": "int64", "bigint": "int64", "long": "int64", "int8": "int32", "int16": "int32", "short": "int32",
	"smallint": "int32", "uint": "uint64", "uint8": "int32", "uint16": "int32", "uint32": "int64", "unsigned": "uint64", "float": "float64",
	"float32": "float64", "double": "float64", "real": "float64", "number": "float64", "numeric": "decimal", "text": "string", "str": "string",
	"varchar": "string", "char": "string", "keyword": dictionaryName, "enum": dictionaryName, "bytes": "binary", "bytea": "binary", "blob": "binary",
	"datetime": "timestamp", "time": "timestamp", "timestamptz": "timestamp", "array": "list", "object": "struct", "record": "struct", "row": "struct",
	"json": "string", "uuid": "string", "date32": "date",
}

var scalars = map[string]Kind{
	"bool": Bool, "int32": Int32, "int64": Int64, "uint64": Uint64, "float64": Float64, "string": String, "binary": Binary,
	"date": Date, "timestamp": Timestamp,
}

// Text returns the text of a type as schemas have it: [Type.String] plus dictionaries, time formats and "not null". For
// struct fields it includes name, type and nullability. Fields with more properties are written out like those of a schema.
func (t *Type) Text() string { return string(t.appendText(nil, true)) }

// appendText appends the text of a type: what a query sees of it, or, if exact is set, all of it.
func (t *Type) appendText(dst []byte, exact bool) []byte {
	switch {
	case exact && t.Kind == String && t.Dictionary:
		return append(dst, dictionaryName...)
	case exact && len(t.Formats) > 0:
		dst = append(append(dst, t.Kind.String()...), '(')
		for i, f := range t.Formats {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			if _, named := f.Unix(); named || f == RFC3339 {
				dst = append(dst, f...)
			} else {
				dst = append(append(append(dst, '\''), strings.ReplaceAll(string(f), "'", "''")...), '\'')
			}
		}
		return append(dst, ')')
	case t.Kind == Decimal:
		return fmt.Appendf(dst, "decimal(%d,%d)", t.Precision, t.Scale)
	case t.Kind == List || t.Kind == Map:
		dst = append(append(dst, t.Kind.String()...), '<')
		return append(t.Elem.appendText(dst, exact), '>')
	case t.Kind == Struct:
		dst = append(dst, "struct<"...)
		for i := range t.Fields {
			f := &t.Fields[i]
			if i > 0 {
				dst = append(dst, ", "...)
			}
			if exact {
				dst = appendName(dst, f.Name)
			} else {
				dst = append(dst, f.Name...)
			}
			dst = f.Type.appendText(append(dst, ' '), exact)
			if exact && !f.Nullable {
				dst = append(dst, " not null"...)
			}
		}
		return append(dst, '>')
	default:
		return append(dst, t.Kind.String()...)
	}
}

// appendName appends a name. It quotes a name with characters other than letters, digits and underscores.
func appendName(dst []byte, name string) []byte {
	if plainName(name) {
		return append(dst, name...)
	}
	return append(append(append(dst, '"'), strings.ReplaceAll(name, `"`, `""`)...), '"')
}

func plainName(name string) bool {
	for i, c := range name {
		if c != '_' && !unicode.IsLetter(c) && (i == 0 || !unicode.IsDigit(c)) || c == utf8.RuneError {
			return false
		}
	}
	return name != ""
}

// typeError describes a problem in the text of a type. The functions of typeParser panic with it.
type typeError struct {
	at            int // byte offset in the text
	message, hint string
}

// parseType parses the text of a type: a name (bool, int32, int64, uint64, float64, string, dictionary, binary, date, timestamp),
// decimal(precision,scale), list<type>, map<type>, struct<name type, name type not null>, and dates and timestamps with formats,
// as in timestamp(unix_ms, '2006-01-02 15:04:05'). The innermost type may be a struct without fields, which are then written
// elsewhere: it returns that struct as bare.
func parseType(text string) (t, bare *Type, failed *typeError) {
	if len(text) > MaxText {
		return nil, nil, &typeError{message: fmt.Sprintf("type too long: the limit is %d bytes", MaxText)}
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *typeError:
			failed = e
		default:
			panic(e)
		}
	}()
	p := &typeParser{text: text}
	t = new(Type)
	p.parseType(t, 0)
	if p.skipSpace(); p.at < len(text) {
		panic(p.errorf("unexpected text after the type"))
	}
	if p.bare != nil && p.inStruct {
		panic(&typeError{at: p.bareAt, message: "a struct within a struct has no fields", hint: "write struct<name type, name type>"})
	}
	return t, p.bare, nil
}

type typeParser struct {
	text  string
	at    int
	types int
	// bare is the struct without fields.
	bare     *Type
	bareAt   int
	inStruct bool
}

func (p *typeParser) errorf(format string, args ...any) *typeError {
	return &typeError{at: p.at, message: fmt.Sprintf(format, args...)}
}

func (p *typeParser) skipSpace() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// acceptByte skips the next character if it is c, and reports whether it was.
func (p *typeParser) acceptByte(c byte) bool {
	if p.startsWith(c) {
		p.at++
		return true
	}
	return false
}

func (p *typeParser) expectByte(c byte, after string) {
	if !p.acceptByte(c) {
		panic(p.errorf("%q is missing after %s", string(c), after))
	}
}

// parseWord reads letters, digits and underscores.
func (p *typeParser) parseWord() string {
	p.skipSpace()
	begin := p.at
	for p.at < len(p.text) {
		c, n := utf8.DecodeRuneInString(p.text[p.at:])
		if c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) || c == utf8.RuneError {
			break
		}
		p.at += n
	}
	return p.text[begin:p.at]
}

func (p *typeParser) parseQuoted() string {
	quote := p.text[p.at]
	text, closed := p.scanQuoted()
	if !closed {
		panic(p.errorf("missing closing %c", quote))
	}
	return text
}

// scanQuoted reads the quoted text that begins here. Quotes within it are doubled.
func (p *typeParser) scanQuoted() (text string, closed bool) {
	quote := p.text[p.at : p.at+1]
	p.at++
	for begin := p.at; ; p.at++ {
		n := strings.Index(p.text[p.at:], quote)
		if n < 0 {
			return "", false
		}
		if p.at += n + 1; !strings.HasPrefix(p.text[p.at:], quote) {
			return strings.ReplaceAll(p.text[begin:p.at-1], quote+quote, quote), true
		}
	}
}

// startsWith skips blanks and reports whether the next character is c.
func (p *typeParser) startsWith(c byte) bool {
	p.skipSpace()
	return p.at < len(p.text) && p.text[p.at] == c
}

func (p *typeParser) parseType(t *Type, depth int) {
	if depth >= MaxDepth {
		panic(p.errorf("types are nested too deep: the limit is %d levels", MaxDepth))
	}
	if p.types++; p.types > MaxTypes {
		panic(p.errorf("too many types: the limit is %d", MaxTypes))
	}
	p.skipSpace()
	begin := p.at
	switch name := p.parseWord(); name {
	case "decimal":
		t.Kind = Decimal
		p.parseDecimal(t)
	case dictionaryName:
		t.Kind, t.Dictionary = String, true
	case "list", "map":
		if t.Kind = List; name == "map" {
			t.Kind = Map
		}
		p.expectByte('<', name)
		t.Elem = new(Type)
		p.parseType(t.Elem, depth+1)
		p.expectByte('>', "the type of "+name+"'s values")
	case "struct":
		t.Kind = Struct
		if p.acceptByte('<') {
			p.parseFields(t, depth)
		} else {
			p.bare, p.bareAt = t, begin
		}
	default:
		kind, ok := scalars[name]
		if !ok {
			panic(unknownType(begin, name, p.text[begin:]))
		}
		t.Kind = kind
		if (kind == Date || kind == Timestamp) && p.acceptByte('(') {
			p.parseFormats(t)
		}
	}
}

func unknownType(at int, name, rest string) *typeError {
	if name == "" {
		if rest == "" {
			return &typeError{at: at, message: "missing type", hint: "types are " + strings.Join(typeNames, ", ")}
		}
		return &typeError{at: at, message: fmt.Sprintf("%q is not a type", clipText(rest)), hint: "types are " + strings.Join(typeNames, ", ")}
	}
	e := &typeError{at: at, message: fmt.Sprintf("unknown type %q", clipText(name))}
	if other := otherNames[strings.ToLower(name)]; other != "" {
		e.hint = fmt.Sprintf("did you mean %q?", other)
	} else {
		e.hint = cmp.Or(near.Hint(name, typeNames), "types are "+strings.Join(typeNames, ", "))
	}
	return e
}

func (p *typeParser) parseDecimal(t *Type) {
	p.expectByte('(', "decimal")
	var numbers [2]int32
	n := 0
	for {
		begin := p.at
		word := p.parseWord()
		v, err := strconv.ParseUint(word, 10, 8)
		if err != nil || n == 2 {
			panic(&typeError{at: begin, message: "decimal needs the number of digits and of digits after the point", hint: "for example decimal(18,2)"})
		}
		numbers[n] = int32(v)
		if n++; !p.acceptByte(',') {
			break
		}
	}
	t.Precision, t.Scale = numbers[0], numbers[1]
	p.expectByte(')', "decimal's digits")
}

func (p *typeParser) parseFormats(t *Type) {
	for more := true; more; more = p.acceptByte(',') {
		t.Formats = append(t.Formats, p.parseFormat())
		if len(t.Formats) > MaxFormats {
			panic(p.errorf("too many time formats: the limit is %d", MaxFormats))
		}
	}
	p.expectByte(')', "the time formats")
}

func (p *typeParser) parseFormat() TimeFormat {
	if p.startsWith('\'') {
		return TimeFormat(p.parseQuoted())
	}
	begin := p.at
	f := TimeFormat(p.parseWord())
	if _, unix := f.Unix(); !unix && f != RFC3339 {
		hint := cmp.Or(nearFormat(f), "formats are "+strings.Join(timeFormatNames, ", ")+" and layouts in single quotes, as in '2006-01-02 15:04:05'")
		panic(&typeError{at: begin, message: fmt.Sprintf("unknown time format %q", clipText(string(f))), hint: hint})
	}
	return f
}

func nearFormat(f TimeFormat) string { return near.Hint(string(f), timeFormatNames) }

func (p *typeParser) parseFields(t *Type, depth int) {
	was := p.bare
	for more := true; more; more = p.acceptByte(',') {
		f := Field{Nullable: true}
		if p.startsWith('"') {
			f.Name = p.parseQuoted()
		} else if f.Name = p.parseWord(); f.Name == "" {
			panic(&typeError{at: p.at, message: "missing field name", hint: `put a name with other characters than letters, digits and _ in double quotes`})
		}
		p.parseType(&f.Type, depth+1)
		p.inStruct = p.inStruct || p.bare != was
		if at := p.at; p.parseWord() != "not" {
			p.at = at
		} else if p.parseWord() != "null" {
			panic(p.errorf(`"not" is not followed by "null"`))
		} else {
			f.Nullable = false
		}
		t.Fields = append(t.Fields, f)
	}
	p.expectByte('>', "the fields of a struct")
}
