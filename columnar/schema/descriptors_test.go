package schema

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

// descriptors makes a set of one file with the messages a.Row and a.Inner, the latter of one field.
func descriptors(t *testing.T, inner string, number int32, typ descriptorpb.FieldDescriptorProto_Type, more ...*descriptorpb.FieldDescriptorProto) []byte {
	t.Helper()
	optional := descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()
	field := func(name string, number int32, typ descriptorpb.FieldDescriptorProto_Type, of *string) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &typ, TypeName: of, Label: optional}
	}
	message := descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	b, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{{
		Name: new("a.proto"), Package: new("a"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("Row"), Field: append([]*descriptorpb.FieldDescriptorProto{field("inner", 1, message, new(".a.Inner")), field("self", 2, message, new(".a.Row"))}, more...)},
			{Name: new("Inner"), Field: []*descriptorpb.FieldDescriptorProto{field(inner, number, typ, nil)}},
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func protobufSchema(message string, set []byte) string {
	return fmt.Sprintf("format: protobuf\nprotobuf: {message: %s, descriptors: %s}\nfields: [{name: n, type: int64, path: inner.n}]", message, base64.StdEncoding.EncodeToString(set))
}

// TestProtobuf: descriptors are read, and may change as long as stored messages read the same.
func TestProtobuf(t *testing.T) {
	const integer, text = descriptorpb.FieldDescriptorProto_TYPE_INT64, descriptorpb.FieldDescriptorProto_TYPE_STRING
	set := descriptors(t, "n", 1, integer)
	before := parse(t, protobufSchema("a.Row", set))
	same(t, before)
	if d, err := before.Protobuf.Descriptor(); err != nil || d.FullName() != "a.Row" || d.Fields().Len() != 2 {
		t.Errorf("%v, %v", d, err)
	}
	added := &descriptorpb.FieldDescriptorProto{Name: new("x"), Number: new(int32(3)), Type: text.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()}
	for _, c := range []struct {
		after string
		want  string // with an exclamation mark what is not compatible
	}{
		{protobufSchema("a.Row", set), ""},
		{protobufSchema("a.Row", descriptors(t, "n", 1, integer, added)), "stored messages read the same"},
		{protobufSchema("a.Row", descriptors(t, "n", 2, integer)), "!a.Inner.n (1) changes"},
		{protobufSchema("a.Row", descriptors(t, "m", 1, integer)), "!a.Inner.n (1) changes"},
		{protobufSchema("a.Row", descriptors(t, "n", 1, text)), "!a.Inner.n (1) changes"},
		{protobufSchema("a.Inner", set), `!the protobuf message changes from "a.Row" to "a.Inner"`},
	} {
		changes := Compare(before, parse(t, c.after))
		want, bad := strings.CutPrefix(c.want, "!")
		if !strings.Contains(changes.String(), want) || changes.Compatible() == bad || (want == "") != (len(changes) == 0) {
			t.Errorf("%v (compatible: %v), want %s", changes, changes.Compatible(), c.want)
		}
	}
	for text, want := range map[string]string{
		protobufSchema("a.Rwo", set):                                                          `did you mean "a.Row"?`,
		protobufSchema("a.Row.inner", set):                                                    "not in the descriptors",
		protobufSchema("a.Row", []byte("\xff\xff")):                                           "descriptors: ",
		protobufSchema("a.Row", set[:len(set)-1]):                                             "descriptors: ",
		strings.Replace(protobufSchema("a.Row", set), "descriptors:", "descriptors_file:", 1): "command line",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", clipText(text), err)
		}
	}
	s, err := ParseFile([]byte("format: protobuf\nprotobuf: {message: a.Row, descriptors_file: row.pb}\nfields: [{name: n, type: int64, path: inner.n}]"), func(name string) ([]byte, error) {
		if name != "row.pb" {
			return nil, fmt.Errorf("%s is not there", name)
		}
		return set, nil
	})
	if err != nil || !Same(s, before) {
		t.Errorf("from a file: %v", err)
	}
	if _, err := ParseFile([]byte("format: avro\navro_file: x\nfields: [{name: n, type: int64}]"), func(string) ([]byte, error) { return nil, fmt.Errorf("not there") }); err == nil || !strings.Contains(err.Error(), "line 2, column 12: avro_file: not there") {
		t.Errorf("a file that is not there: %v", err)
	}
}
