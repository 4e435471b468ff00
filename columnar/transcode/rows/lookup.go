package rows

import (
	"scribe/columnar/schema"
	"scribe/columnar/transcode/column"
)

// WantedFields returns the declared fields that a plan reads, and their indices in the schema.
func (p *Plan) WantedFields() (fields []schema.Field, indices []int) {
	for i := range p.Inputs {
		if f := p.Inputs[i].Field; f >= 0 {
			fields, indices = append(fields, p.Schema.Fields[f]), append(indices, f)
		}
	}
	return fields, indices
}

// Target is a position in a datum that leads to required values: a node in the tree of the fields' remaining path steps. One walk
// over a datum finds all fields. Formats compile the tree against their own types.
type Target struct {
	// Slots are the slots whose path ends here.
	Slots    []int
	Children map[string]*Target
}

// Lookup describes how the fields of a struct or row are found. Each field has a slot for its path, followed by one for each
// alias. The first slot that the walk over the datum has filled holds the value.
type Lookup struct {
	fields    []schema.Field
	FirstSlot []int // the slot of each field's path; one entry more than fields
	Root      *Target
}

// NewLookup assigns slots to the paths of fields.
func NewLookup(fields []schema.Field) *Lookup {
	l := &Lookup{fields: fields, Root: &Target{}}
	slots := 0
	for i := range fields {
		l.FirstSlot = append(l.FirstSlot, slots)
		for _, path := range fields[i].Sources() {
			l.Root.addSlot(path, slots)
			slots++
		}
	}
	l.FirstSlot = append(l.FirstSlot, slots)
	return l
}

// SlotCount returns the number of slots.
func (l *Lookup) SlotCount() int { return l.FirstSlot[len(l.fields)] }

func (t *Target) addSlot(path []string, slot int) {
	for _, name := range path {
		next := t.Children[name]
		if next == nil {
			next = &Target{}
			if t.Children == nil {
				t.Children = map[string]*Target{}
			}
			t.Children[name] = next
		}
		t = next
	}
	t.Slots = append(t.Slots, slot)
}

// EachSlot calls yield with every slot at or below t.
func (t *Target) EachSlot(yield func(slot int)) {
	for _, s := range t.Slots {
		yield(s)
	}
	for _, p := range t.Children {
		p.EachSlot(yield)
	}
}

// MemoryGuard bounds the memory of lists and maps while they are built. An element of one byte may stand for a struct of a
// hundred columns.
type MemoryGuard struct {
	Limit int64 // maximum bytes of a column
	count int
}

// WhyTooMuchMemory is the reason for an element that does not fit because HasMemory returned false.
const WhyTooMuchMemory = "the lists of this column take more memory than a batch may"

// HasMemory reports whether one more element may be appended to c, a list or a map. It measures the memory only from time to
// time.
func (r *MemoryGuard) HasMemory(c *column.Buffer) bool {
	const often = 4096
	if r.count++; r.count%often != 0 {
		return true
	}
	return c.Bytes() <= r.Limit
}
