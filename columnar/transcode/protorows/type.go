package protorows

import (
	"maps"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"scribe/columnar/schema"
	"scribe/columnar/transcode/rows"
)

// protoWalk is a compiled walk over the fields of a message type. It finds the required parts.
type protoWalk struct {
	fields map[protowire.Number]*protoField
	// small holds the fields with low numbers, which are nearly all fields.
	small [32]*protoField
	// zeros are the slots of fields that can't be absent: without a value they have their type's zero value.
	zeros []protoSlot
}

// protoSlot is what a slot gets for a field.
type protoSlot struct {
	slot int
	typ  *protoType
}

// protoField is a field of a message with required values.
type protoField struct {
	typ  *protoType
	wire protowire.Type
	// slots receive the field's value.
	slots []int
	// below is the walk over the field's message value. all lists every slot that it may fill.
	below *protoWalk
	all   []int
	// keys are the keys of a map whose values contain required values.
	keys map[string]*protoKey
}

// protoKey is a map key whose value contains required values. Its walk covers the whole entry.
type protoKey struct {
	walk  *protoWalk
	slots []int // slots that it may fill
}

func newProtoKey(entry protoreflect.MessageDescriptor, at *rows.Target, found func(slot int, t *protoType)) *protoKey {
	alone := &rows.Target{Children: map[string]*rows.Target{"value": at}}
	k := &protoKey{walk: newProtoWalk(entry, alone, found)}
	if k.walk == nil {
		return nil
	}
	at.EachSlot(func(s int) { k.slots = append(k.slots, s) })
	return k
}

// protoKind groups field kinds by how they are converted.
type protoKind uint8

const (
	protoScalar protoKind = iota
	protoMessage
	protoMap
	protoWrapper
	protoTimestamp
	protoDuration
)

// protoType is the type of a field.
type protoType struct {
	kind    protoKind
	scalar  protoreflect.Kind
	list    bool
	enum    map[protoreflect.EnumNumber]string
	message protoreflect.MessageDescriptor
	// key and value are the types of a map. value is also the type inside a wrapper.
	key, value *protoType
}

func newProtoType(f protoreflect.FieldDescriptor) *protoType {
	t := &protoType{scalar: f.Kind(), list: f.IsList()}
	if f.IsMap() {
		t.kind, t.list, t.message = protoMap, false, f.Message()
		t.key, t.value = newProtoType(f.MapKey()), newProtoType(f.MapValue())
		return t
	}
	if e := f.Enum(); e != nil {
		t.enum = map[protoreflect.EnumNumber]string{}
		values := e.Values()
		for i := range values.Len() {
			v := values.Get(i)
			if _, ok := t.enum[v.Number()]; !ok { // the first of several names counts
				t.enum[v.Number()] = string(v.Name())
			}
		}
	}
	if t.message = f.Message(); t.message == nil {
		return t
	}
	t.kind = protoMessage
	switch t.message.FullName() {
	case "google.protobuf.Timestamp":
		t.kind = protoTimestamp
	case "google.protobuf.Duration":
		t.kind = protoDuration
	case "google.protobuf.BoolValue", "google.protobuf.BytesValue", "google.protobuf.DoubleValue", "google.protobuf.FloatValue",
		"google.protobuf.Int32Value", "google.protobuf.Int64Value", "google.protobuf.StringValue", "google.protobuf.UInt32Value", "google.protobuf.UInt64Value":
		if v := t.message.Fields().ByNumber(1); v != nil {
			t.kind, t.value = protoWrapper, newProtoType(v)
		}
	}
	return t
}

// newProtoWalk compiles a walk over messages of type m. It returns nil if none of their parts are required. found is called with
// each type that a slot may get.
func newProtoWalk(m protoreflect.MessageDescriptor, at *rows.Target, found func(slot int, t *protoType)) *protoWalk {
	w := &protoWalk{fields: map[protowire.Number]*protoField{}}
	for name, part := range at.Children {
		fd := schema.ProtobufField(m, name)
		if fd == nil {
			continue
		}
		f := &protoField{typ: newProtoType(fd), wire: wireOf(fd.Kind()), slots: part.Slots}
		for _, s := range f.slots {
			found(s, f.typ)
			if !fd.HasPresence() || m.IsMapEntry() {
				w.zeros = append(w.zeros, protoSlot{slot: s, typ: f.typ})
			}
		}
		switch {
		case f.typ.kind == protoMap:
			for key, sub := range part.Children {
				if k := newProtoKey(fd.Message(), sub, found); k != nil {
					if f.keys == nil {
						f.keys = map[string]*protoKey{}
					}
					f.keys[key] = k
				}
			}
		case fd.Message() != nil && !fd.IsList() && len(part.Children) > 0:
			f.below = newProtoWalk(fd.Message(), part, found)
		}
		if len(f.slots) == 0 && f.below == nil && f.keys == nil {
			continue
		}
		part.EachSlot(func(s int) { f.all = append(f.all, s) })
		w.fields[fd.Number()] = f
	}
	if len(w.fields) == 0 {
		return nil
	}
	maps.DeleteFunc(w.fields, func(n protowire.Number, f *protoField) bool {
		if n > 0 && int(n) < len(w.small) {
			w.small[n] = f
			return true
		}
		return false
	})
	return w
}

// fieldOf returns the field with number n, or nil if it is not required.
func (w *protoWalk) fieldOf(n protowire.Number) *protoField {
	if int(n) < len(w.small) {
		return w.small[n]
	}
	return w.fields[n]
}

// wireOf returns the wire type of an unpacked value of a kind.
func wireOf(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return protowire.Fixed64Type
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return protowire.Fixed32Type
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	default:
		return protowire.VarintType
	}
}
