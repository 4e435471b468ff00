package schema

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"scribe/columnar/near"
)

// dictionaryName is how a schema writes a string that Arrow holds as codes of a dictionary.
const dictionaryName = "dictionary"

var typeNames = []string{
	"bool", "int32", "int64", "uint64", "float64", "decimal", "string", dictionaryName, "binary", "date", "timestamp", "list", "struct", "map",
}

// otherNames are names of types elsewhere, for hints.
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

// Text returns the type as a schema's text writes it, which [ParseType] reads: [Type.String] with dictionaries, time formats and what is
// not null. Of the fields of a struct it has name, type and nullability; fields that have more are written out as those of a schema are.
func (t *Type) Text() string { return string(t.appendText(nil)) }

func (t *Type) appendText(dst []byte) []byte {
	switch {
	case t.Kind == String && t.Dictionary:
		return append(dst, dictionaryName...)
	case len(t.Formats) > 0:
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
	case t.Kind == List || t.Kind == Map:
		dst = append(append(dst, t.Kind.String()...), '<')
		return append(t.Elem.appendText(dst), '>')
	case t.Kind == Struct:
		dst = append(dst, "struct<"...)
		for i := range t.Fields {
			f := &t.Fields[i]
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(appendName(dst, f.Name), ' ')
			dst = f.Type.appendText(dst)
			if !f.Nullable {
				dst = append(dst, " not null"...)
			}
		}
		return append(dst, '>')
	default:
		return append(dst, t.String()...)
	}
}

// appendName appends a name, in quotes if it is not made of letters, digits and underscores.
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

// typeError says what is wrong with the text of a type.
type typeError struct {
	at            int // byte of the text
	message, hint string
}

// Error implements error.
func (e *typeError) Error() string {
	text := fmt.Sprintf("%s, at character %d of the type", e.message, e.at+1)
	if e.hint != "" {
		text += "; " + e.hint
	}
	return text
}

// ParseType reads the text of a type: a name (bool, int32, int64, uint64, float64, string, dictionary, binary, date, timestamp),
// decimal(precision,scale), list<type>, map<type>, struct<name type, name type not null>, and for dates and timestamps their formats,
// timestamp(unix_ms, '2006-01-02 15:04:05').
func ParseType(text string) (Type, error) {
	t, bare, err := parseType(text)
	if err == nil && bare != nil {
		err = &typeError{at: len(text), message: "struct has no fields", hint: `write struct<name type, name type>`}
	}
	if err != nil {
		return Type{}, err
	}
	return *t, nil
}

// parseType reads a type that may have at its inside a struct without fields, which are written elsewhere; it returns that too.
func parseType(text string) (t, bare *Type, err error) {
	if len(text) > MaxText {
		return nil, nil, &typeError{message: fmt.Sprintf("the type has more than %d bytes", MaxText)}
	}
	p := &typeParser{text: text}
	out := new(Type)
	if err := p.parse(out, 0); err != nil {
		return nil, nil, err
	}
	if p.space(); p.at < len(text) {
		return nil, nil, p.fail("there is something behind the type")
	}
	if p.bare != nil && p.inStruct {
		return nil, nil, &typeError{at: p.bareAt, message: "struct within a struct has no fields", hint: "write struct<name type, name type>"}
	}
	return out, p.bare, nil
}

type typeParser struct {
	text  string
	at    int
	types int
	// bare is the struct that was met without fields.
	bare     *Type
	bareAt   int
	inStruct bool
}

func (p *typeParser) fail(format string, args ...any) error {
	return &typeError{at: p.at, message: fmt.Sprintf(format, args...)}
}

func (p *typeParser) space() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// take passes over a character if it comes next.
func (p *typeParser) take(c byte) bool {
	if p.space(); p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *typeParser) want(c byte, after string) error {
	if !p.take(c) {
		return p.fail("%q is missing after %s", string(c), after)
	}
	return nil
}

// word passes over letters, digits and underscores.
func (p *typeParser) word() string {
	p.space()
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

// quoted passes over a text in quotes, which are doubled within it.
func (p *typeParser) quoted(quote byte) (string, error) {
	if !p.take(quote) {
		return "", nil
	}
	var b strings.Builder
	for {
		end := strings.IndexByte(p.text[p.at:], quote)
		if end < 0 {
			return "", p.fail("a %c is not closed", quote)
		}
		b.WriteString(p.text[p.at : p.at+end])
		if p.at += end + 1; p.at >= len(p.text) || p.text[p.at] != quote {
			return b.String(), nil
		}
		b.WriteByte(quote)
		p.at++
	}
}

func (p *typeParser) parse(t *Type, depth int) error {
	if depth >= MaxDepth {
		return p.fail("types nest more than %d deep", MaxDepth)
	}
	if p.types++; p.types > MaxTypes {
		return p.fail("there are more than %d types", MaxTypes)
	}
	p.space()
	begin := p.at
	name := p.word()
	switch name {
	case "decimal":
		t.Kind = Decimal
		return p.decimal(t)
	case dictionaryName:
		t.Kind, t.Dictionary = String, true
		return nil
	case "list", "map":
		if t.Kind = List; name == "map" {
			t.Kind = Map
		}
		if err := p.want('<', name); err != nil {
			return err
		}
		t.Elem = new(Type)
		if err := p.parse(t.Elem, depth+1); err != nil {
			return err
		}
		return p.want('>', "the type of "+name+"'s values")
	case "struct":
		t.Kind = Struct
		if !p.take('<') {
			p.bare, p.bareAt = t, begin
			return nil
		}
		return p.fields(t, depth)
	}
	kind, ok := scalars[name]
	if !ok {
		p.at = begin
		return unknownType(begin, name, p.text[begin:])
	}
	t.Kind = kind
	if (kind == Date || kind == Timestamp) && p.take('(') {
		return p.formats(t)
	}
	return nil
}

func unknownType(at int, name, rest string) error {
	if name == "" {
		if rest == "" {
			return &typeError{at: at, message: "a type is missing", hint: "types are " + strings.Join(typeNames, ", ")}
		}
		return &typeError{at: at, message: fmt.Sprintf("%q is no type", clip(rest)), hint: "types are " + strings.Join(typeNames, ", ")}
	}
	e := &typeError{at: at, message: fmt.Sprintf("the type %q is not known", clip(name))}
	if other := otherNames[strings.ToLower(name)]; other != "" {
		e.hint = fmt.Sprintf("did you mean %q?", other)
	} else if e.hint = near.Hint(name, typeNames); e.hint == "" {
		e.hint = "types are " + strings.Join(typeNames, ", ")
	}
	return e
}

func (p *typeParser) decimal(t *Type) error {
	if err := p.want('(', "decimal"); err != nil {
		return err
	}
	var numbers [2]int32
	n := 0
	for {
		begin := p.at
		word := p.word()
		v, err := strconv.ParseUint(word, 10, 8)
		if err != nil || n == 2 {
			p.at = begin
			return &typeError{at: begin, message: "decimal wants digits in all and digits behind the point", hint: "for example decimal(18,2)"}
		}
		numbers[n] = int32(v)
		if n++; !p.take(',') {
			break
		}
	}
	t.Precision, t.Scale = numbers[0], numbers[1]
	return p.want(')', "decimal's digits")
}

func (p *typeParser) formats(t *Type) error {
	for {
		p.space()
		begin := p.at
		var f TimeFormat
		if p.at < len(p.text) && p.text[p.at] == '\'' {
			layout, err := p.quoted('\'')
			if err != nil {
				return err
			}
			f = TimeFormat(layout)
		} else {
			f = TimeFormat(p.word())
			if _, unix := f.Unix(); !unix && f != RFC3339 {
				p.at = begin
				hint := nearFormat(f)
				if hint == "" {
					hint = "formats are " + strings.Join(timeFormatNames, ", ") + " and layouts in single quotes, as in '2006-01-02 15:04:05'"
				}
				return &typeError{at: begin, message: fmt.Sprintf("the time format %q is not known", clip(string(f))), hint: hint}
			}
		}
		if t.Formats = append(t.Formats, f); len(t.Formats) > MaxFormats {
			return p.fail("there are more than %d time formats", MaxFormats)
		}
		if !p.take(',') {
			return p.want(')', "the time formats")
		}
	}
}

func nearFormat(f TimeFormat) string { return near.Hint(string(f), timeFormatNames) }

func (p *typeParser) fields(t *Type, depth int) error {
	was := p.bare
	for {
		p.space()
		var f Field
		if p.at < len(p.text) && p.text[p.at] == '"' {
			name, err := p.quoted('"')
			if err != nil {
				return err
			}
			f.Name = name
		} else if f.Name = p.word(); f.Name == "" {
			return &typeError{at: p.at, message: "a field's name is missing", hint: `names that are not made of letters, digits and _ stand in double quotes`}
		}
		if err := p.parse(&f.Type, depth+1); err != nil {
			return err
		}
		if p.bare != was {
			p.inStruct = true
		}
		f.Nullable = true
		if at := p.at; p.word() != "not" {
			p.at = at
		} else if p.word() != "null" {
			return p.fail(`"not" is not followed by "null"`)
		} else {
			f.Nullable = false
		}
		t.Fields = append(t.Fields, f)
		if !p.take(',') {
			return p.want('>', "the fields of a struct")
		}
	}
}
