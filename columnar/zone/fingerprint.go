package zone

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"scribe/columnar/schema"
)

// Definitions are the columns of a schema, each with a fingerprint: a number that follows from everything that a column's values follow
// from: the format of the messages, where the column is looked for, its type and how values become it, its default; and where rows that do
// not fit are left out, all columns, for they say which rows there are. It is immutable.
type Definitions struct {
	version uint32
	columns map[string]definition
}

type definition struct {
	typ         schema.Type
	fingerprint uint64
}

// Define returns the definitions of a schema. It is made once a version.
func Define(s *schema.Schema) *Definitions {
	columns := s.Columns()
	d := &Definitions{version: s.Version, columns: make(map[string]definition, len(columns))}
	format := printer{}
	format.format(s)
	all := printer{buf: slices.Clone(format.buf)}
	all.number(len(s.Fields))
	for i := range s.Fields {
		all.field(&s.Fields[i])
	}
	rejects := s.Version != 0 && s.OnError == schema.OnErrorReject
	for _, c := range columns {
		p := printer{}
		p.text(c.Name)
		if rejects {
			p.text(string(s.OnError))
			p.buf = append(p.buf, all.buf...)
		}
		switch {
		case c.Field >= 0:
			p.buf = append(p.buf, format.buf...)
			p.field(&s.Fields[c.Field])
		case c.Name == schema.ColumnRest || c.Name == schema.ColumnError:
			p.buf = append(p.buf, all.buf...) // they depend on all others
		default:
			p.typ(&c.Type) // the message's own, which no schema changes
			if s.CSV != nil && s.CSV.Header {
				p.text("header") // of messages without lines there are no rows
			}
		}
		d.columns[c.Name] = definition{c.Type, xxhash.Sum64(p.buf)}
	}
	return d
}

// printer writes definitions without ambiguity: every text and every list has its length in front.
type printer struct{ buf []byte }

func (p *printer) number(n int) { p.buf = binary.AppendVarint(p.buf, int64(n)) }

func (p *printer) flag(b bool) {
	if b {
		p.number(1)
		return
	}
	p.number(0)
}

func (p *printer) text(s string) {
	p.number(len(s))
	p.buf = append(p.buf, s...)
}

func (p *printer) texts(list []string) {
	p.number(len(list))
	for _, s := range list {
		p.text(s)
	}
}

// format is what of a schema says how a row is cut.
func (p *printer) format(s *schema.Schema) {
	p.text(string(s.Format))
	p.flag(s.CSV != nil)
	if c := s.CSV; c != nil {
		p.text(c.Delimiter)
		p.flag(c.Header)
		p.texts(c.Columns)
		p.text(c.Null)
		if !c.Header && len(c.Columns) == 0 {
			// The names of the fields, in their order, say which column is whose.
			p.number(len(s.Fields))
			for i := range s.Fields {
				p.text(s.Fields[i].Name)
			}
		}
	}
	p.text(s.Avro)
	p.flag(s.Protobuf != nil)
	if b := s.Protobuf; b != nil {
		p.text(string(b.Descriptors))
		p.text(b.Message)
	}
}

func (p *printer) field(f *schema.Field) {
	p.text(f.Name)
	p.typ(&f.Type)
	p.flag(f.Nullable)
	p.texts(f.Path)
	p.number(len(f.Aliases))
	for _, a := range f.Aliases {
		p.texts(a)
	}
	p.text(f.Default)
}

// typ leaves out whether Arrow holds a string in a dictionary: the values are the same.
func (p *printer) typ(t *schema.Type) {
	p.number(int(t.Kind))
	p.number(int(t.Precision))
	p.number(int(t.Scale))
	p.number(len(t.Formats))
	for _, f := range t.Formats {
		p.text(string(f))
	}
	p.flag(t.Elem != nil)
	if t.Elem != nil {
		p.typ(t.Elem)
	}
	p.number(len(t.Fields))
	for i := range t.Fields {
		p.field(&t.Fields[i])
	}
}
