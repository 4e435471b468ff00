package restrict

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"scribe/columnar/expr"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/transcode"
	"scribe/columnar/vector"
)

// ErrInapplicable means that a restriction can't be applied to a category as it is now, so that nothing of it may be read. The text names columns, and is
// not for the reader.
var ErrInapplicable = errors.New("the restriction can't be applied")

func inapplicable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInapplicable, fmt.Errorf(format, args...))
}

// Table is a restriction over one version of a schema: what the reader has in place of the category. It is safe for concurrent use.
type Table struct {
	// source is the category's schema without dictionaries, whose arrays would have values of other rows. reader is the schema that the reader knows.
	source, reader *schema.Schema
	// rewritten: the reader's messages are made anew, as JSON objects of the visible columns, a line for each row. Otherwise they are the stored ones.
	rewritten bool
	// severalRows: a message has several rows, also one that is made anew: positions and offsets count messages, and there must not be more than were stored.
	severalRows bool
	// where is the condition under which a row is visible; nil = always.
	where expr.Expr
	// limits are the conditions of the single limits; nil = always.
	limits []expr.Expr
	// columns says of each column of the source that is not fully visible to whom it is: the limits that show it. Without any it is masked in all rows.
	columns map[string][]int
	// inputs are the columns that conditions name.
	inputs []string

	mu struct {
		sync.Mutex
		makers map[string]*rowMaker
	}
}

// maxMakers bounds the sets of columns for which a table keeps a compiled transcoder.
const maxMakers = 64

// Compile applies a restriction to a version of a category's schema. It fails with ErrInapplicable, so that nothing may be read, if a column that a limit names
// is not there: it may have been renamed, and its values would come by another name.
func Compile(s *schema.Schema, r *Restriction) (*Table, error) {
	if len(r.limits) == 0 {
		return nil, inapplicable("%s", r.nothing)
	}
	t := &Table{source: plainSchema(s), columns: map[string][]int{}}
	t.severalRows = s.Format == schema.NDJSON || s.Format == schema.CSV
	t.mu.makers = map[string]*rowMaker{}
	inputs := map[string]bool{}
	always := false
	for i := range r.limits {
		where, err := t.bindLimit(&r.limits[i])
		if err != nil {
			return nil, err
		}
		t.limits = append(t.limits, where)
		always = always || where == nil
		if where != nil {
			expr.Columns(where, func(c *expr.Column) { inputs[c.Name] = true })
		}
	}
	if !always {
		t.where = junction(expr.Or, t.limits)
	}
	for name := range inputs {
		t.inputs = append(t.inputs, name)
	}
	slices.Sort(t.inputs)
	if err := t.checkProtobuf(r); err != nil {
		return nil, err
	}
	t.rewritten = t.needsRewriting(r)
	hidden := t.judgeColumns(r)
	var err error
	t.reader, err = t.readerSchema(hidden)
	return t, err
}

// checkProtobuf returns an error if limits name columns and two columns are read from one field of a Protobuf message, or from one inside another: a field has two names, so that a schema
// can have them, and what one column hides the other would show. In other formats a value is in one column (schema.Validate).
func (t *Table) checkProtobuf(r *Restriction) error {
	if t.source.Format != schema.Protobuf || !slices.ContainsFunc(r.limits, func(l Limit) bool { return l.limitsColumns() }) {
		return nil
	}
	top, err := t.source.Protobuf.Descriptor()
	if err != nil {
		return inapplicable("%w", err)
	}
	type source struct{ column, path string }
	var all []source
	for i := range t.source.Fields {
		f := &t.source.Fields[i]
		for _, path := range f.Sources() {
			all = append(all, source{f.Name, numberPath(top, path)})
		}
	}
	for _, a := range all {
		for _, b := range all {
			if a.column != b.column && strings.HasPrefix(b.path, a.path) {
				return inapplicable("columns %q and %q are of one field of the Protobuf message: what a limit hides of one the other would show", a.column, b.column)
			}
		}
	}
	return nil
}

// numberPath returns a path with the numbers of fields in place of their names, as far as there are fields. Steps end with a zero byte.
func numberPath(m protoreflect.MessageDescriptor, path []string) string {
	var b strings.Builder
	for _, step := range path {
		if m != nil {
			fd := schema.ProtobufField(m, step)
			if m = nil; fd != nil {
				step = strconv.Itoa(int(fd.Number()))
				m = fd.Message()
			}
		}
		b.WriteString(step)
		b.WriteByte(0)
	}
	return b.String()
}

// bindLimit returns the condition of a limit, nil for none, and checks its columns.
func (t *Table) bindLimit(l *Limit) (expr.Expr, error) {
	if l.limitsColumns() && t.source.Version == 0 {
		return nil, inapplicable("%q needs a schema: the category has none", l.String())
	}
	for _, name := range slices.Concat(l.Hide, l.Mask) {
		if !strings.HasPrefix(name, "_") && !slices.ContainsFunc(t.source.Fields, func(f schema.Field) bool { return f.Name == name }) {
			return nil, inapplicable("column %q of %q is not in version %d of the schema", name, l.String(), t.source.Version)
		}
	}
	if l.Where == "" {
		return nil, nil //nolint:nilnil // no condition
	}
	parsed, err := sql.ParsePredicate(l.Where)
	if err != nil {
		return nil, inapplicable("condition %q: %w", l.Where, oneLine(err))
	}
	bound, err := plan.BindPredicate(parsed, t.source, plan.Options{Now: time.Unix(0, 0), Timeless: true})
	if err != nil {
		return nil, inapplicable("condition %q over version %d of the schema: %w", l.Where, t.source.Version, oneLine(err))
	}
	where := bound.Where
	terms := expr.Conjuncts(where)
	for _, term := range terms {
		var at string
		expr.Columns(term, func(c *expr.Column) {
			if plan.AtConsumer(c.Name) {
				at = c.Name
			}
		})
		if at != "" {
			return nil, inapplicable("condition %q names %s, which only readers know", l.Where, at)
		}
	}
	if t.source.Version != 0 {
		// What does not fit the schema may have a value that the condition does not see.
		terms = append(terms, &expr.Call{
			Op: expr.IsNull, Args: []expr.Expr{&expr.Column{Name: schema.ColumnError, T: schema.Type{Kind: schema.String}}}, T: schema.Type{Kind: schema.Bool},
		})
	}
	return junction(expr.And, terms), nil
}

// junction joins conditions; nil for none.
func junction(op expr.Op, terms []expr.Expr) expr.Expr {
	switch len(terms) {
	case 0:
		return nil
	case 1:
		return terms[0]
	}
	return &expr.Call{Op: op, Args: slices.Clone(terms), T: schema.Type{Kind: schema.Bool}}
}

// needsRewriting reports whether stored messages have bytes that the reader must not see though a row of theirs is visible.
func (t *Table) needsRewriting(r *Restriction) bool {
	for i := range r.limits {
		if r.limits[i].limitsColumns() {
			return true
		}
	}
	switch t.source.Format { //nolint:exhaustive // the others have a message for each row
	case schema.NDJSON, schema.CSV, schema.Arrow:
		return true
	}
	return false
}

// judgeColumns finds out who sees which column, and returns those that nobody does.
func (t *Table) judgeColumns(r *Restriction) (hidden map[string]bool) {
	hidden = map[string]bool{}
	judge := func(name string, shows, exists func(l *Limit) bool) {
		var showing []int
		found := false
		for i := range r.limits {
			l := &r.limits[i]
			if shows(l) {
				showing = append(showing, i)
			}
			found = found || exists(l)
		}
		if len(showing) < len(r.limits) {
			t.columns[name] = showing
		}
		if !found {
			hidden[name] = true
		}
	}
	for i := range t.source.Fields {
		name := t.source.Fields[i].Name
		judge(name,
			func(l *Limit) bool { return !slices.Contains(l.Hide, name) && !slices.Contains(l.Mask, name) },
			func(l *Limit) bool { return !slices.Contains(l.Hide, name) })
	}
	always := func(*Limit) bool { return true }
	for _, name := range []string{schema.ColumnKey, schema.ColumnAttr} {
		judge(name, func(l *Limit) bool { return !l.limitsColumns() || slices.Contains(l.Show, name) }, always)
	}
	// What is not declared, and why a value did not fit, may have anything in it.
	for _, name := range []string{schema.ColumnRest, schema.ColumnError} {
		judge(name, func(l *Limit) bool { return !l.limitsColumns() }, always)
	}
	if t.rewritten {
		t.columns[schema.ColumnError] = nil // the new messages fit
		if t.source.Format != schema.JSON && t.source.Format != schema.NDJSON || !slices.ContainsFunc(t.source.Fields, func(f schema.Field) bool { return len(f.Path) > 0 }) {
			return hidden
		}
		t.columns[schema.ColumnRest] = nil // members of a new message could have the name of a column
	}
	return hidden
}

// readerSchema returns the schema that the reader knows.
func (t *Table) readerSchema(hidden map[string]bool) (*schema.Schema, error) {
	if !t.rewritten {
		return t.source, nil
	}
	s := &schema.Schema{Version: t.source.Version, Format: schema.JSON, OnError: schema.OnErrorNull}
	if t.severalRows {
		s.Format = schema.NDJSON
	}
	for i := range t.source.Fields {
		if f := &t.source.Fields[i]; !hidden[f.Name] {
			s.Fields = append(s.Fields, schema.Field{Name: f.Name, Type: bareType(&f.Type), Nullable: true, Doc: f.Doc})
		}
	}
	if len(s.Fields) == 0 {
		return nil, inapplicable("every column is hidden")
	}
	if err := s.Validate(); err != nil {
		return nil, inapplicable("the schema without hidden columns: %w", err)
	}
	return s, nil
}

// bareType is a type without what says how values are written in messages.
func bareType(t *schema.Type) schema.Type {
	b := *t
	b.Formats, b.Dictionary = nil, false
	if t.Elem != nil {
		e := bareType(t.Elem)
		b.Elem = &e
	}
	b.Fields = nil
	for i := range t.Fields {
		b.Fields = append(b.Fields, schema.Field{Name: t.Fields[i].Name, Type: bareType(&t.Fields[i].Type), Nullable: true})
	}
	return b
}

// plainSchema is a schema without dictionaries.
func plainSchema(s *schema.Schema) *schema.Schema {
	c := *s
	c.Fields = slices.Clone(s.Fields)
	for i := range c.Fields {
		c.Fields[i].Type = plainType(&c.Fields[i].Type)
	}
	return &c
}

func plainType(t *schema.Type) schema.Type {
	p := *t
	p.Dictionary = false
	if t.Elem != nil {
		e := plainType(t.Elem)
		p.Elem = &e
	}
	p.Fields = slices.Clone(t.Fields)
	for i := range p.Fields {
		p.Fields[i].Type = plainType(&p.Fields[i].Type)
	}
	return p
}

// Schema returns the schema that the reader knows, under the version of the category's.
func (t *Table) Schema() *schema.Schema { return t.reader }

// Rewritten reports whether the reader's messages are made anew: JSON objects of the visible columns, a line for each row.
func (t *Table) Rewritten() bool { return t.rewritten }

// rowMaker makes the visible rows of payloads, with the values of some columns.
type rowMaker struct {
	transcoder *transcode.Transcoder
	// columns are those of the transcoder's batches.
	columns []string
	// filters are the conditions of limits that only some columns are visible by; nil where none is needed.
	filters map[int]*vector.Filter
}

// makerOf returns the maker for some columns of the source that are not masked in all rows.
func (t *Table) makerOf(columns []string) (*rowMaker, error) {
	key := strings.Join(columns, "\x00")
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.mu.makers[key]; m != nil {
		return m, nil
	}
	m := &rowMaker{columns: slices.Clone(columns), filters: map[int]*vector.Filter{}}
	partly := map[int]bool{}
	for _, name := range columns {
		for _, i := range t.columns[name] {
			partly[i] = true
		}
	}
	if !slices.Contains(m.columns, transcode.ColumnIndex) {
		m.columns = append(m.columns, transcode.ColumnIndex)
	}
	if len(partly) > 0 {
		for _, name := range t.inputs {
			if !slices.Contains(m.columns, name) {
				m.columns = append(m.columns, name)
			}
		}
	}
	var err error
	m.transcoder, err = transcode.New(transcode.Spec{Schema: t.source, Columns: m.columns, Where: t.where, Limits: transcode.Limits{Bytes: MaxBytes}})
	if err != nil {
		return nil, err
	}
	for i := range partly {
		if t.limits[i] == nil {
			continue // it shows all rows
		}
		if m.filters[i], err = vector.CompileFilter(t.limits[i], m.transcoder.Schema()); err != nil {
			return nil, err
		}
	}
	if len(t.mu.makers) >= maxMakers {
		clear(t.mu.makers)
	}
	t.mu.makers[key] = m
	return m, nil
}
