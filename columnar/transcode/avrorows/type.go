package avrorows

import (
	"fmt"
	"math"
	"strings"

	"github.com/twmb/avro"
)

// avroKind is how Avro writes values.
type avroKind uint8

const (
	avroNull avroKind = iota + 1
	avroBoolean
	avroInt
	avroLong
	avroFloat
	avroDouble
	avroBytes
	avroString
	avroFixed
	avroEnum
	avroArray
	avroMap
	avroUnion
	avroRecord
)

// avroType is a type of the writer's schema, made ready for walking over values of it. Types refer to each other in circles.
type avroType struct {
	kind     avroKind
	name     string // of a record
	logical  string
	scale    int32
	size     int // of a fixed
	symbols  []string
	elem     *avroType   // of an array, a map
	branches []*avroType // of a union
	fields   []avroField // of a record
	// least is the fewest bytes that a value takes; constant says that all take just as many.
	least    int
	constant bool
}

type avroField struct {
	name string
	typ  *avroType
}

// avroPrimitives are the types that have a name without a definition.
var avroPrimitives = map[string]avroKind{
	"null": avroNull, "boolean": avroBoolean, "int": avroInt, "long": avroLong,
	"float": avroFloat, "double": avroDouble, "bytes": avroBytes, "string": avroString,
}

// parseAvro reads the writer's schema. What the library lets pass and no decoder could bear is refused too.
func parseAvro(text string) (*avroType, error) {
	s, err := avro.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("transcode: the Avro schema: %w", err)
	}
	b := avroBuilder{named: map[string]*avroType{}}
	t, err := b.buildType(s.Root(), "")
	if err != nil {
		return nil, fmt.Errorf("transcode: the Avro schema: %w", err)
	}
	// The sizes of types that refer to each other are found in rounds, from endless and constant on.
	for changed := true; changed; {
		changed = false
		for _, t := range b.all {
			least, constant := t.measureSize()
			changed = changed || least != t.least || constant != t.constant
			t.least, t.constant = least, constant
		}
	}
	for _, t := range b.all {
		if t.least == endless {
			return nil, fmt.Errorf("transcode: the Avro schema: the record %s contains itself without end: make the reference optional, as a union with null", t.name)
		}
	}
	return t, nil
}

// endless is the size of a value that has no end.
const endless = math.MaxInt32

type avroBuilder struct {
	named map[string]*avroType // by full name
	all   []*avroType
}

func (b *avroBuilder) buildType(n *avro.SchemaNode, namespace string) (*avroType, error) {
	t := &avroType{logical: n.LogicalType, scale: int32(n.Scale), size: n.Size, symbols: n.Symbols, least: endless, constant: true}
	if kind, ok := avroPrimitives[n.Type]; ok {
		t.kind = kind
		b.all = append(b.all, t)
		return t, nil
	}
	var err error
	switch n.Type {
	case "fixed":
		t.kind = avroFixed
		b.defineName(n, t)
	case "enum":
		t.kind = avroEnum
		b.defineName(n, t)
	case "array":
		t.kind = avroArray
		t.elem, err = b.buildType(n.Items, namespace)
	case "map":
		t.kind = avroMap
		t.elem, err = b.buildType(n.Values, namespace)
	case "union":
		t.kind = avroUnion
		for i := range n.Branches {
			branch, err := b.buildType(&n.Branches[i], namespace)
			if err != nil {
				return nil, err
			}
			t.branches = append(t.branches, branch)
		}
	case "record", "error":
		t.kind, t.name = avroRecord, n.Name
		namespace = b.defineName(n, t)
		for i := range n.Fields {
			field, err := b.buildType(&n.Fields[i].Type, namespace)
			if err != nil {
				return nil, err
			}
			t.fields = append(t.fields, avroField{name: n.Fields[i].Name, typ: field})
		}
	default:
		if t := b.named[namespace+"."+n.Type]; t != nil {
			return t, nil
		}
		if t := b.named["."+n.Type]; t != nil {
			return t, nil
		}
		if t := b.named[n.Type]; t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("the type %q is not defined", n.Type)
	}
	b.all = append(b.all, t)
	return t, err
}

// defineName makes t known by its full name, which has its namespace and a point before it even if that is empty. It returns the namespace.
func (b *avroBuilder) defineName(n *avro.SchemaNode, t *avroType) string {
	namespace, name := n.Namespace, n.Name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		namespace, name = name[:i], name[i+1:]
	}
	b.named[namespace+"."+name] = t
	return namespace
}

// measureSize finds least and constant from what is known of the types below.
func (t *avroType) measureSize() (least int, constant bool) {
	switch t.kind {
	case avroNull:
		return 0, true
	case avroBoolean:
		return 1, true
	case avroFloat:
		return 4, true
	case avroDouble:
		return 8, true
	case avroFixed:
		return t.size, true
	case avroUnion:
		least = endless - 1
		for _, b := range t.branches {
			least = min(least, b.least)
		}
		return least + 1, false
	case avroRecord:
		constant = true
		for i := range t.fields {
			least = min(least+t.fields[i].typ.least, endless)
			constant = constant && t.fields[i].typ.constant
		}
		return least, constant
	default:
		return 1, false
	}
}
