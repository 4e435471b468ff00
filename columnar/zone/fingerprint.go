package zone

import (
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"

	"scribe/columnar/schema"
)

// Definitions are the columns of a schema, each with a fingerprint. The fingerprint is a hash of everything that determines the
// column's values: the message format, the column's paths, its type with its conversions, and its default. If rows that do not
// fit are omitted, it covers all columns, because they determine which rows exist. Definitions are immutable.
type Definitions struct {
	version uint32
	columns map[string]columnDefinition
}

type columnDefinition struct {
	typ         schema.Type
	fingerprint uint64
}

// Define returns the definitions of a schema. It is called once per version.
func Define(s *schema.Schema) *Definitions {
	columns := s.Columns()
	d := &Definitions{version: s.Version, columns: make(map[string]columnDefinition, len(columns))}
	format := definitionPrinter{}
	format.writeFormat(s)
	all := definitionPrinter{buf: slices.Clone(format.buf)}
	all.writeNumber(len(s.Fields))
	for i := range s.Fields {
		all.writeField(&s.Fields[i])
	}
	rejects := s.Version != 0 && s.OnError == schema.OnErrorReject
	for _, c := range columns {
		p := definitionPrinter{}
		p.writeText(c.Name)
		if rejects {
			p.writeText(string(s.OnError))
			p.buf = append(p.buf, all.buf...)
		}
		switch {
		case c.Field >= 0:
			p.buf = append(p.buf, format.buf...)
			p.writeField(&s.Fields[c.Field])
		case c.Name == schema.ColumnRest || c.Name == schema.ColumnError:
			p.buf = append(p.buf, all.buf...) // the row set depends on all columns
		default:
			p.writeType(&c.Type) // a built-in column, which no schema changes
			if s.CSV != nil && s.CSV.Header {
				p.writeText("header") // messages without lines have no rows
			}
		}
		d.columns[c.Name] = columnDefinition{c.Type, xxhash.Sum64(p.buf)}
	}
	return d
}

// definitionPrinter writes definitions unambiguously: every text and list is prefixed by its length.
type definitionPrinter struct{ buf []byte }

func (p *definitionPrinter) writeNumber(n int) { p.buf = binary.AppendVarint(p.buf, int64(n)) }

func (p *definitionPrinter) writeFlag(b bool) {
	n := 0
	if b {
		n = 1
	}
	p.writeNumber(n)
}

func (p *definitionPrinter) writeText(s string) {
	p.writeNumber(len(s))
	p.buf = append(p.buf, s...)
}

func (p *definitionPrinter) writeTexts(list []string) {
	p.writeNumber(len(list))
	for _, s := range list {
		p.writeText(s)
	}
}

// writeFormat writes the parts of a schema that determine how a row is split.
func (p *definitionPrinter) writeFormat(s *schema.Schema) {
	p.writeText(string(s.Format))
	p.writeFlag(s.CSV != nil)
	if c := s.CSV; c != nil {
		p.writeText(c.Delimiter)
		p.writeFlag(c.Header)
		p.writeTexts(c.Columns)
		p.writeText(c.Null)
		if !c.Header && len(c.Columns) == 0 {
			// The names of the fields, in order, determine the column of each cell.
			p.writeNumber(len(s.Fields))
			for i := range s.Fields {
				p.writeText(s.Fields[i].Name)
			}
		}
	}
	p.writeText(s.Avro)
	p.writeFlag(s.Protobuf != nil)
	if b := s.Protobuf; b != nil {
		p.writeText(string(b.Descriptors))
		p.writeText(b.Message)
	}
}

func (p *definitionPrinter) writeField(f *schema.Field) {
	p.writeText(f.Name)
	p.writeType(&f.Type)
	p.writeFlag(f.Nullable)
	p.writeTexts(f.Path)
	p.writeNumber(len(f.Aliases))
	for _, a := range f.Aliases {
		p.writeTexts(a)
	}
	p.writeText(f.Default)
}

// writeType omits whether Arrow holds a string in a dictionary, since the values are the same.
func (p *definitionPrinter) writeType(t *schema.Type) {
	p.writeNumber(int(t.Kind))
	p.writeNumber(int(t.Precision))
	p.writeNumber(int(t.Scale))
	p.writeNumber(len(t.Formats))
	for _, f := range t.Formats {
		p.writeText(string(f))
	}
	p.writeFlag(t.Elem != nil)
	if t.Elem != nil {
		p.writeType(t.Elem)
	}
	p.writeNumber(len(t.Fields))
	for i := range t.Fields {
		p.writeField(&t.Fields[i])
	}
}
