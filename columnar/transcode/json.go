package transcode

import (
	"bytes"
	"unicode/utf8"
	"unsafe"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/jsonscan"
	"scribe/internal/record"
)

func init() {
	readers[schema.JSON] = func(p *plan) (func() frameReader, error) { return newJSONPlan(p, false).reader, nil }
	readers[schema.NDJSON] = func(p *plan) (func() frameReader, error) { return newJSONPlan(p, true).reader, nil }
}

// jsonPlan is what the readers of JSON share.
type jsonPlan struct {
	p     *plan
	lines bool // a message has an object a line
	top   *node
	slots int
	// fields are the declared fields that are read.
	fields []jsonField
}

// jsonField is a declared field: the slots of its sources.
type jsonField struct {
	field   int
	sources []int
}

func newJSONPlan(p *plan, lines bool) *jsonPlan {
	j := &jsonPlan{p: p, lines: lines, top: newNode()}
	var t tree
	for i := range p.inputs {
		if p.inputs[i].field < 0 {
			continue
		}
		f := jsonField{field: p.inputs[i].field}
		for k, path := range p.schema.Fields[f.field].Sources() {
			f.sources = append(f.sources, t.add(j.top, path, f.field, k))
		}
		j.fields = append(j.fields, f)
	}
	j.slots = t.slots
	return j
}

func (j *jsonPlan) reader() frameReader {
	r := &jsonReader{j: j, shape: newShape(j.top)}
	r.w.slots = make([]slot, j.slots)
	r.w.wantRest = j.p.wantsRest
	r.w.decide = func([]int) bool { return true }
	return r
}

// jsonReader reads messages that are objects, or lines of objects.
type jsonReader struct {
	j       *jsonPlan
	w       walker
	shape   *shape
	decoder record.Decoder
	message record.Record

	frameBytes    []byte
	base, covered int // the part of the frame whose index is made
}

// window is how much of a frame is indexed at once, if rows are shorter.
const window = 32 << 10

func (r *jsonReader) frame(rows *rows, f record.Frame, first uint32) error {
	if _, err := r.decoder.Reset(f.Bytes); err != nil {
		return err
	}
	r.frameBytes, r.base, r.covered = f.Bytes, 0, 0
	defer func() {
		r.frameBytes, r.w.b = nil, nil
		r.w.x.Release(keepIndex)
	}()
	for r.decoder.Next(&r.message) {
		rows.setMessage(&r.message, first+uint32(r.message.Index))
		at := r.place(r.message.Payload)
		if r.j.lines {
			r.linesOf(rows, at, at+len(r.message.Payload))
		} else {
			r.row(rows, at, at+len(r.message.Payload))
		}
		if err := rows.err(); err != nil {
			return err
		}
	}
	return r.decoder.Err()
}

// place returns where in the frame a part of it is.
func (r *jsonReader) place(part []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(r.frameBytes))))
}

// linesOf reads the lines of a message. Empty ones are no rows; a message of nothing else is a row that does not fit.
func (r *jsonReader) linesOf(rows *rows, at, limit int) {
	none := true
	for at < limit {
		end := limit
		if i := bytes.IndexByte(r.frameBytes[at:limit], '\n'); i >= 0 {
			end = at + i
		}
		if jsonscan.SkipSpace(r.frameBytes, at, end) < end {
			none = false
			if r.row(rows, at, end); rows.err() != nil {
				return
			}
		}
		at = end + 1
	}
	if none {
		r.row(rows, limit, limit)
	}
}

// row reads the row that stands in the frame from at to limit.
func (r *jsonReader) row(rows *rows, at, limit int) {
	if limit-at > r.j.p.limits.RowBytes {
		rows.begin()
		rows.badRow(r.j.p.limits.RowBytes, "longer than the limit of rows")
		rows.end()
		return
	}
	if at < r.base || limit > r.covered {
		r.base, r.covered = at, max(limit, min(at+window, len(r.frameBytes)))
		r.w.b = r.frameBytes[r.base:]
		r.w.x.Reset(r.frameBytes[r.base:r.covered])
	}
	at, limit = at-r.base, limit-r.base
	end := failed
	if r.w.x.ASCII(at, limit) || utf8.Valid(r.w.b[at:limit]) {
		end = r.w.row(r.shape, at, limit)
	} else {
		r.w.fail(at+invalidAt(r.w.b[at:limit]), whyNotUTF8)
	}
	rows.begin()
	if end == failed {
		rows.badRow(r.w.fault.At-at, r.w.fault.Why)
	} else {
		r.emit(rows, at)
	}
	rows.end()
}

// invalidAt returns the place of the first byte that is no part of a character.
func invalidAt(b []byte) int {
	at := 0
	for at < len(b) {
		c, n := utf8.DecodeRune(b[at:])
		if c == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return at
}

// emit makes columns of the slots of a row that begins at start.
func (r *jsonReader) emit(rows *rows, start int) {
	w := &r.w
	for i := range r.j.fields {
		f := &r.j.fields[i]
		c := rows.declared[f.field]
		var s *slot
		for _, source := range f.sources {
			if w.slots[source].gen == w.gen {
				s = &w.slots[source]
				break
			}
		}
		switch {
		case s == nil: // missing
		case s.kind == slotNull:
			if r.j.p.fields[f.field].nullable {
				c.appendNull()
			} else if r.j.p.fields[f.field].fallback == nil {
				rows.badValue(f.field, int(s.at)-start, whyNull)
			}
		default:
			if why, at := w.materialise(c, s); why != "" {
				rows.badValue(f.field, at-start, why)
			}
		}
	}
	if r.j.p.wantsRest {
		rows.rest = w.appendRest(rows.rest)
	}
}

// materialise appends the value of a slot. It returns why, and where, it does not fit.
func (w *walker) materialise(c *column, s *slot) (why string, at int) {
	switch s.kind {
	case slotInt:
		switch c.typ.Kind {
		case schema.Int64:
			c.appendInt64(s.val)
			return "", 0
		case schema.Int32:
			if int64(int32(s.val)) == s.val {
				c.appendInt32(int32(s.val))
				return "", 0
			}
		default:
		}
		return appendNumber(c, w.b[s.at:s.end]), int(s.at)
	case slotNumber:
		return appendNumber(c, w.b[s.at:s.end]), int(s.at)
	case slotText:
		return textInto(c, w.b[s.at:s.end]), int(s.at) - 1
	case slotEscaped:
		text, fault := w.unescape(int(s.at), int(s.end))
		if !fault.OK() {
			return fault.Why, fault.At
		}
		return textInto(c, text), int(s.at) - 1
	case slotTrue, slotFalse:
		return appendBool(c, s.kind == slotTrue, w.b[s.at:s.end]), int(s.at)
	case slotContainer:
		_, fault := w.into(c, int(s.at))
		return fault.Why, fault.At
	case slotBad:
		return s.why, int(s.at)
	default:
		return whyNull, int(s.at)
	}
}
