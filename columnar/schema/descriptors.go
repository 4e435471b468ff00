package schema

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// compareProtobuf compares two versions of the message type. Protobuf itself allows more changes, such as dropping a field number
// or changing it to a type with the same encoding. Those would change how stored values are read.
func (c *schemaComparer) compareProtobuf(before, after *ProtobufOptions) {
	if before.Message != after.Message {
		c.addChange("", false, "", "the protobuf message changes from %q to %q", clipText(before.Message), clipText(after.Message))
		return
	}
	if string(before.Descriptors) == string(after.Descriptors) {
		return
	}
	a, err := before.Descriptor()
	if err != nil {
		return // can't happen: the schema was valid
	}
	b, err := after.Descriptor()
	if err != nil {
		return
	}
	d := &messageComparer{c: c, seen: map[protoreflect.FullName]bool{}}
	if d.compareMessages(a, b); !d.wrong {
		c.addChange("", true, "", "the protobuf descriptors change; stored messages read the same")
	}
}

type messageComparer struct {
	c     *schemaComparer
	seen  map[protoreflect.FullName]bool
	wrong bool
}

func (d *messageComparer) compareMessages(before, after protoreflect.MessageDescriptor) {
	if d.seen[before.FullName()] {
		return
	}
	d.seen[before.FullName()] = true
	for i := range before.Fields().Len() {
		a := before.Fields().Get(i)
		b := after.Fields().ByNumber(a.Number())
		if b == nil || a.Kind() != b.Kind() || a.Cardinality() != b.Cardinality() || a.Name() != b.Name() || a.IsMap() != b.IsMap() {
			d.wrong = true
			d.c.addChange("", false, "keep its number, name and type", "the protobuf field %s (%d) changes", a.FullName(), a.Number())
			continue
		}
		if m := a.Message(); m != nil && b.Message() != nil {
			d.compareMessages(m, b.Message())
		}
	}
}
