package transcode

import "scribe/columnar/schema"

// wantedFields returns the declared fields that a plan reads, and their indices in the schema.
func (p *plan) wantedFields() (fields []schema.Field, indices []int) {
	for i := range p.inputs {
		if f := p.inputs[i].field; f >= 0 {
			fields, indices = append(fields, p.schema.Fields[f]), append(indices, f)
		}
	}
	return fields, indices
}

// target is a place in a datum that some field is looked for at: the parts of a path that is not yet walked, as a tree of the paths of
// several fields, so that one walk over a datum finds them all. Formats compile it against their own types.
type target struct {
	// slots are the places whose path ends here.
	slots []int
	parts map[string]*target
}

// lookup is how the fields of a struct, or of a row, are found: each field has a slot for its path, and behind it one for each of its
// aliases; the first slot that the walk over the datum has filled is where the value is.
type lookup struct {
	fields []schema.Field
	first  []int // the slot of each field's path; one more than fields
	root   *target
}

func newLookup(fields []schema.Field) *lookup {
	l := &lookup{fields: fields, root: &target{}}
	slots := 0
	for i := range fields {
		l.first = append(l.first, slots)
		for _, path := range fields[i].Sources() {
			l.root.add(path, slots)
			slots++
		}
	}
	l.first = append(l.first, slots)
	return l
}

// slots is how many slots there are.
func (l *lookup) slots() int { return l.first[len(l.fields)] }

func (t *target) add(path []string, slot int) {
	for _, name := range path {
		next := t.parts[name]
		if next == nil {
			next = &target{}
			if t.parts == nil {
				t.parts = map[string]*target{}
			}
			t.parts[name] = next
		}
		t = next
	}
	t.slots = append(t.slots, slot)
}

// all calls yield with every slot at or below t.
func (t *target) all(yield func(slot int)) {
	for _, s := range t.slots {
		yield(s)
	}
	for _, p := range t.parts {
		p.all(yield)
	}
}

// room watches over the memory of lists and maps while they are made: an element of one byte may stand for a struct of a hundred columns.
type room struct {
	limit int64 // of bytes of a column
	count int
}

const whyRoom = "the lists of this column take more memory than a batch may"

// left reports whether one more element may be appended to c, a list or a map. It measures now and then.
func (r *room) left(c *column) bool {
	const often = 4096
	if r.count++; r.count%often != 0 {
		return true
	}
	return c.size() <= r.limit
}
