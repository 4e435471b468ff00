package jsonrows

import (
	"bytes"
	"maps"
	"slices"
	"unicode/utf8"
	"unsafe"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
	"scribe/columnar/transcode/jsonscan"
	"scribe/columnar/transcode/rows"
	"scribe/internal/format/record"
)

// NewReader compiles a plan for messages that are objects or, if lines is set, lines of objects.
func NewReader(p *rows.Plan, lines bool) func() rows.FrameReader {
	return newJSONPlan(p, lines).newReader
}

// jsonPlan is the state shared by the readers of a plan.
type jsonPlan struct {
	p     *rows.Plan
	lines bool // a message has one object per line
	top   *keyNode
	slots int
	// fields are the declared fields that are read.
	fields []jsonField
	// Terms of the predicate that slots decide: those with declared fields, and those with only the message's own columns. All must
	// be true.
	terms    []predicateTerm
	messages []slotPredicate
	search   *frameFilter
}

// predicateTerm is a term of the top-level AND.
type predicateTerm struct {
	decide slotPredicate
	fields []int // in jsonPlan.fields
}

// jsonField is a declared field with the slots of its sources.
type jsonField struct {
	field   int
	sources []int
	only    int // the source if there is only one, else -1
	class   fieldClass
	// nullable means that null is a value, which takes precedence over later sources.
	nullable bool
	// parts are the fields of a struct with one source. Its members have slots of their own and are read once. Other nested values
	// are first skipped, and read once the row is known to be needed.
	parts []jsonField
}

// fieldClass selects the fields with a fast path into their columns.
type fieldClass uint8

const (
	otherField fieldClass = iota
	textField             // String or Binary
	listField             // List of Int64, String or Binary
	intField              // Int64
	floatField            // Float64
	boolField             // Bool
	timeField             // Timestamp
	wordField             // the other kinds of hasWord
)

// isWord reports whether the class's values satisfy hasWord.
func (c fieldClass) isWord() bool { return c >= intField }

func classOf(t *schema.Type) fieldClass {
	switch {
	case t.Kind == schema.Int64:
		return intField
	case t.Kind == schema.Float64:
		return floatField
	case t.Kind == schema.Bool:
		return boolField
	case t.Kind == schema.Timestamp:
		return timeField
	case isText(t.Kind):
		return textField
	case t.Kind == schema.List && (t.Elem.Kind == schema.Int64 || isText(t.Elem.Kind)):
		return listField
	case hasWord(t.Kind):
		return wordField
	default:
		return otherField
	}
}

func newJSONPlan(p *rows.Plan, lines bool) *jsonPlan {
	j := &jsonPlan{p: p, lines: lines, top: newKeyNode()}
	var t slotTree
	for i := range p.Inputs {
		if p.Inputs[i].Field < 0 {
			continue
		}
		j.fields = append(j.fields, t.addField(j.top, &p.Schema.Fields[p.Inputs[i].Field], p.Inputs[i].Field))
	}
	j.slots = t.slots
	j.pushDown()
	return j
}

// addField makes the slots of a field that is looked up from n.
func (t *slotTree) addField(n *keyNode, declared *schema.Field, i int) jsonField {
	f := jsonField{field: i, class: classOf(&declared.Type), only: -1, nullable: declared.Nullable}
	sources := declared.Sources()
	if declared.Type.Kind == schema.Struct && len(sources) == 1 {
		slot, k := t.addSource(n, sources[0], i, 0)
		f.sources, f.only = []int{slot}, slot
		if k == nil {
			return f
		}
		k.below = newKeyNode()
		below := k.below // n.children may be reallocated
		for j := range declared.Type.Fields {
			f.parts = append(f.parts, t.addField(below, &declared.Type.Fields[j], j))
		}
		return f
	}
	for k, path := range sources {
		slot, _ := t.addSource(n, path, i, k)
		f.sources = append(f.sources, slot)
	}
	if len(f.sources) == 1 {
		f.only = f.sources[0]
	}
	return f
}

// pushDown takes the predicate terms that slots can decide. The plan keeps the others.
func (j *jsonPlan) pushDown() {
	conjuncts := expr.Conjuncts(j.p.Where)
	var rest []expr.Expr
	for _, e := range conjuncts {
		push := predicatePusher{j: j, fields: map[int]bool{}}
		switch p := push.pushExpr(e); {
		case p == nil:
			rest = append(rest, e)
		case len(push.fields) == 0:
			j.messages = append(j.messages, p)
		default:
			j.addTerm(predicateTerm{p, slices.Sorted(maps.Keys(push.fields))})
		}
	}
	j.search = j.prefilterOf(conjuncts)
	j.p.Residual = rest
}

// addTerm adds a term and registers it with the keys after which it may be decided early. This requires fields with one source:
// with several, the end of the row decides which one counts.
func (j *jsonPlan) addTerm(t predicateTerm) {
	i := len(j.terms)
	j.terms = append(j.terms, t)
	if !j.p.EarlyStop {
		return
	}
	for _, f := range t.fields {
		if len(j.fields[f].sources) > 1 {
			return
		}
	}
	for k := range j.top.children {
		c := &j.top.children[k]
		for _, f := range t.fields {
			slot := j.fields[f].sources[0]
			if c.slot == slot || c.below != nil && slices.Contains(c.below.slots, slot) {
				c.terms = append(c.terms, i)
				break
			}
		}
	}
}

func (j *jsonPlan) newReader() rows.FrameReader {
	r := &jsonReader{j: j}
	r.w.slots = make([]valueSlot, j.slots)
	r.shape = newShape(j.top, r.w.slots)
	r.w.wantRest = j.p.WantsRest
	if len(j.terms) > 0 {
		r.w.decide = r.decideTerms
	}
	r.decided = make([]uint32, len(j.terms))
	return r
}

// jsonReader reads messages that are objects, or lines of objects.
type jsonReader struct {
	j       *jsonPlan
	w       rowWalker
	shape   *objectShape
	decoder record.Decoder
	message record.Record // the current message, if the plan has WantsMessage

	rows          *rows.Writer
	columns       []*column.Buffer // the columns of the plan's fields
	frameBytes    []byte
	base, covered int // the indexed range of the frame
	search        frameSearch
	// push is set if the predicate is decided here and failing rows are omitted. wanted is set if the message's own terms are true.
	// decided holds, for each term, the generation of the row in which it was last found true.
	push, wanted bool
	decided      []uint32
}

// window is the number of bytes indexed at once, for rows shorter than that.
const window = 32 << 10

func (r *jsonReader) ReadFrame(out *rows.Writer, f record.Frame, first uint32) error {
	if _, err := r.decoder.Reset(f.Bytes); err != nil {
		return err
	}
	r.columns = r.columns[:0]
	for i := range r.j.fields {
		f := &r.j.fields[i]
		r.columns = append(r.columns, out.Declared[f.field])
		// Without terms to decide, values are appended before the end of their row. If the row is damaged, badRow removes them.
		if len(r.j.terms) == 0 {
			r.atOnce(f, out.Declared[f.field])
		}
	}
	r.rows, r.push = out, !out.KeepAll
	out.SetMessage(&r.message, first)
	r.frameBytes, r.base, r.covered = f.Bytes, 0, 0
	if r.j.search != nil {
		r.search.reset(r.j.search)
	}
	defer func() {
		r.frameBytes, r.w.b = nil, nil
		r.w.x.Release(keepIndex)
	}()
	var m record.Record // on the stack, to avoid write barriers: its pointers change with each message
	for r.decoder.Next(&m) {
		if r.j.p.WantsMessage {
			r.message = m
		}
		out.Index = first + uint32(m.Index)
		at := r.offsetOf(m.Payload)
		r.wanted = !r.push || r.messageWanted()
		if r.j.lines {
			r.readLines(out, at, at+len(m.Payload))
		} else {
			r.readRow(out, at, at+len(m.Payload))
		}
		if err := out.Err(); err != nil {
			return err
		}
	}
	return r.decoder.Err()
}

// atOnce lets the walk append common values directly to the column of a field and its parts, which avoids a second pass.
func (r *jsonReader) atOnce(f *jsonField, c *column.Buffer) {
	if f.only >= 0 && f.class != otherField {
		s := &r.w.slots[f.only]
		s.into, s.takes, s.nullable = c, f.class, c.Nullable
	}
	for i := range f.parts {
		r.atOnce(&f.parts[i], c.Children[i])
	}
}

// offsetOf returns the offset of a part within the frame.
func (r *jsonReader) offsetOf(part []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(r.frameBytes))))
}

// readLines reads the lines of a message. Empty lines are not rows. A message with only empty lines is a row that does not fit.
func (r *jsonReader) readLines(out *rows.Writer, at, limit int) {
	none := true
	for at < limit {
		end := limit
		if i := bytes.IndexByte(r.frameBytes[at:limit], '\n'); i >= 0 {
			end = at + i
		}
		if jsonscan.SkipSpace(r.frameBytes, at, end) < end {
			none = false
			if r.readRow(out, at, end); out.Err() != nil {
				return
			}
		}
		at = end + 1
	}
	if none {
		r.readRow(out, limit, limit)
	}
}

// readRow reads the row in the frame from at to limit.
func (r *jsonReader) readRow(out *rows.Writer, at, limit int) {
	ahead := window
	if r.push && !r.wanted {
		out.Stats.Rows++
		return
	}
	if r.push && r.j.search != nil {
		if !r.search.findIn(r.frameBytes, at, limit) {
			out.Stats.Rows++
			return
		}
		ahead = 0 // matches are rare
	}
	if limit-at > r.j.p.Limits.RowBytes {
		r.badRow(out, r.j.p.Limits.RowBytes, "longer than the limit of rows")
		return
	}
	if at < r.base || limit > r.covered {
		r.base, r.covered = at, max(limit, min(at+ahead, len(r.frameBytes)))
		r.w.b = r.frameBytes[r.base:]
		r.w.x.Reset(r.frameBytes[r.base:r.covered])
	}
	at, limit = at-r.base, limit-r.base
	end := failed
	if r.w.x.ASCII(at, limit) || utf8.Valid(r.w.b[at:limit]) {
		end = r.w.walkRow(r.shape, at, limit)
	} else {
		r.w.failAt(at+invalidAt(r.w.b[at:limit]), column.WhyNotUTF8)
	}
	switch {
	case end == stopped:
		out.Stats.Rows++
	case end == failed:
		r.badRow(out, r.w.fault.At-at, r.w.fault.Why)
	case r.push && !r.rowPasses():
		out.Stats.Rows++
	default:
		out.BeginRow()
		r.emitRow(out, at)
		out.EndFullRow()
	}
}

// badRow adds a row that can't be read, if the predicate is true with null for every column that the row might have had.
func (r *jsonReader) badRow(out *rows.Writer, at int, why string) {
	r.w.nextRow() // discard all slots
	if r.push && !r.j.p.Rejects && !r.rowPasses() {
		out.Stats.Rows++
		out.Stats.BadRows++
		return
	}
	out.BeginRow()
	out.FailRow(at, why)
	out.EndRow()
}

// messageWanted reports whether the message's own columns allow its rows to pass.
func (r *jsonReader) messageWanted() bool {
	for _, p := range r.j.messages {
		if p(r) != expr.True {
			return false
		}
	}
	return true
}

// decideTerms decides terms whose fields are known. It reports whether the row can still pass.
func (r *jsonReader) decideTerms(terms []int) bool {
	if !r.push {
		return true
	}
	for _, i := range terms {
		if r.decided[i] == r.w.gen || !r.isKnown(&r.j.terms[i]) {
			continue
		}
		if r.j.terms[i].decide(r) != expr.True {
			return false
		}
		r.decided[i] = r.w.gen
	}
	return true
}

// isKnown reports whether all fields of a term, which have one source each, were found.
func (r *jsonReader) isKnown(t *predicateTerm) bool {
	for _, f := range t.fields {
		if r.w.slots[r.j.fields[f].sources[0]].gen != r.w.gen {
			return false
		}
	}
	return true
}

// rowPasses decides the terms that are undecided at the end of a row.
func (r *jsonReader) rowPasses() bool {
	for i := range r.j.terms {
		if r.decided[i] != r.w.gen && r.j.terms[i].decide(r) != expr.True {
			return false
		}
	}
	return true
}

// invalidAt returns the position of the first byte that is not valid UTF-8.
func invalidAt(b []byte) int {
	for at, c := range asString(b) {
		if c == utf8.RuneError && !bytes.HasPrefix(b[at:], []byte("\ufffd")) {
			return at
		}
	}
	return len(b)
}

// emitRow appends the slots of a row that begins at start to the columns.
func (r *jsonReader) emitRow(out *rows.Writer, start int) {
	w := &r.w
	for i := range r.j.fields {
		f := &r.j.fields[i]
		c := r.columns[i]
		s := r.findSlot(f)
		if s == nil {
			out.AppendMissing(f.field, c)
			continue
		}
		switch {
		case s.kind == slotDone:
			continue
		case f.class == textField && s.kind == slotText:
			c.AppendPart(w.b, int(s.at), int(s.end))
			continue
		case f.class == intField && s.kind == slotInt:
			c.AppendInt64(s.val)
			continue
		}
		if fault := r.emitValue(f, c, s); !fault.OK() {
			out.FailValue(f.field, fault.At-start, fault.Why)
		}
	}
	if r.j.p.WantsRest {
		out.Rest = w.appendRest(out.Rest)
	}
}

// emitValue appends the value of a slot to the column of a field. After a fault the column contains an unfinished value.
func (r *jsonReader) emitValue(f *jsonField, c *column.Buffer, s *valueSlot) (fault jsonscan.Fault) {
	switch {
	case s.kind == slotNull && c.Nullable:
		c.AppendNull()
	case s.kind == slotNull && c.AppendDefault != nil:
		c.AppendDefault(c)
	case s.kind == slotObject:
		return r.emitStruct(f, c, s)
	case !f.class.isWord():
		fault.Why, fault.At = r.w.appendSlot(c, s)
	default:
		if r.w.resolveSlot(c, s); s.kind != slotValue {
			return jsonscan.Fault{At: int(s.at), Why: s.why}
		}
		c.AppendWord(s.val)
	}
	return fault
}

// emitStruct appends a struct from the slots of its parts. After a fault the column contains an unfinished value.
func (r *jsonReader) emitStruct(f *jsonField, c *column.Buffer, object *valueSlot) (fault jsonscan.Fault) {
	for i := range f.parts {
		part, child := &f.parts[i], c.Children[i]
		s := r.findSlot(part)
		switch {
		case s == nil:
			if why := child.AppendAbsent(); why != "" {
				fault = jsonscan.Fault{At: int(object.at), Why: why}
			}
		case s.kind == slotDone:
		case part.class == textField && s.kind == slotText:
			child.AppendPart(r.w.b, int(s.at), int(s.end))
		case part.class == intField && s.kind == slotInt:
			child.AppendInt64(s.val)
		default:
			fault = r.emitValue(part, child, s)
		}
		if !fault.OK() {
			return fault
		}
	}
	c.AppendStruct()
	return fault
}

// appendSlot appends the value of a slot to a column whose type does not satisfy hasWord. If it does not fit, appendSlot returns
// why and where.
func (w *rowWalker) appendSlot(c *column.Buffer, s *valueSlot) (why string, at int) {
	switch s.kind {
	case slotInt, slotNumber:
		return column.PutNumber(c, w.b[s.at:s.end]), int(s.at)
	case slotText:
		return column.PutUTF8(c, w.b[s.at:s.end]), int(s.at) - 1
	case slotEscaped:
		if isText(c.Type.Kind) {
			fault := w.unescapeInto(c, int(s.at), int(s.end))
			return fault.Why, fault.At
		}
		return column.WhyNot(c.Type.Kind), int(s.at) - 1
	case slotTrue, slotFalse:
		return column.PutWrittenBool(c, s.kind == slotTrue, w.b[s.at:s.end]), int(s.at)
	case slotContainer:
		_, fault := w.appendValueAt(c, int(s.at))
		return fault.Why, fault.At
	case slotBad:
		return s.why, int(s.at)
	default:
		return column.WhyNull, int(s.at)
	}
}
