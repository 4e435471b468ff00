package avrotype

import (
	"fmt"
	"math"
	"strings"

	"github.com/twmb/avro"
)

// Kind is the Avro encoding of a value.
type Kind uint8

// Kinds.
const (
	Null Kind = iota + 1
	Boolean
	Int
	Long
	Float
	Double
	Bytes
	String
	Fixed
	Enum
	Array
	Map
	Union
	Record
)

// Type is a type of the writer's schema, prepared for walking over values. Types may be recursive.
type Type struct {
	Kind     Kind
	Name     string // of a record
	Logical  string
	Scale    int32
	Size     int // of a fixed
	Symbols  []string
	Elem     *Type   // of an array, a map
	Branches []*Type // of a union
	Fields   []Field // of a record
	// Least is the minimum length of a value in bytes; constant means that all values have that length.
	Least    int
	Constant bool
}

// Field is a field of a record.
type Field struct {
	Name string
	Type *Type
}

// kinds maps the names of types to kinds.
var kinds = map[string]Kind{
	"null": Null, "boolean": Boolean, "int": Int, "long": Long, "float": Float, "double": Double, "bytes": Bytes, "string": String,
	"fixed": Fixed, "enum": Enum, "array": Array, "map": Map, "union": Union, "record": Record, "error": Record,
}

// Bounds of a schema.
const (
	maxTypes = 4000
	maxDepth = 128
)

// Parse parses the writer's schema. It also rejects schemas that the library accepts but no decoder could handle.
func Parse(text string) (*Type, error) {
	s, err := avro.Parse(text)
	if err != nil {
		return nil, err
	}
	b := typeBuilder{named: map[string]*Type{}}
	t, err := b.buildType(s.Root(), "", 0)
	if err != nil {
		return nil, err
	}
	// The sizes of recursive types are computed in rounds, starting from endless and constant.
	for changed := true; changed; {
		changed = false
		for _, t := range b.all {
			least, constant := t.measureSize()
			changed = changed || least != t.Least || constant != t.Constant
			t.Least, t.Constant = least, constant
		}
	}
	for _, t := range b.all {
		if t.Kind == Record && t.Least == endless {
			return nil, fmt.Errorf("the record %s contains itself without end: make the reference optional, as a union with null", t.Name)
		}
	}
	return t, nil
}

// endless is the size of a value of infinite length.
const endless = math.MaxInt32

type typeBuilder struct {
	named map[string]*Type // by full name
	all   []*Type
	count int
}

func (b *typeBuilder) buildType(n *avro.SchemaNode, namespace string, depth int) (*Type, error) {
	if b.count++; b.count > maxTypes {
		return nil, fmt.Errorf("too many types: the limit is %d", maxTypes)
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("types are nested too deep: the limit is %d levels", maxDepth)
	}
	kind, ok := kinds[n.Type]
	if !ok {
		for _, name := range []string{namespace + "." + n.Type, "." + n.Type, n.Type} {
			if t := b.named[name]; t != nil {
				return t, nil
			}
		}
		return nil, fmt.Errorf("the type %q is not defined", n.Type)
	}
	t := &Type{Kind: kind, Logical: n.LogicalType, Scale: int32(n.Scale), Size: n.Size, Symbols: n.Symbols, Least: endless, Constant: true}
	var err error
	switch kind { //nolint:exhaustive // the others have neither a name nor something inside
	case Fixed, Enum:
		b.defineName(n, t)
	case Array:
		t.Elem, err = b.buildType(n.Items, namespace, depth+1)
	case Map:
		t.Elem, err = b.buildType(n.Values, namespace, depth+1)
	case Union:
		for i := range n.Branches {
			branch, err := b.buildType(&n.Branches[i], namespace, depth+1)
			if err != nil {
				return nil, err
			}
			t.Branches = append(t.Branches, branch)
		}
	case Record:
		t.Name = n.Name
		namespace = b.defineName(n, t)
		for i := range n.Fields {
			field, err := b.buildType(&n.Fields[i].Type, namespace, depth+1)
			if err != nil {
				return nil, err
			}
			t.Fields = append(t.Fields, Field{Name: n.Fields[i].Name, Type: field})
		}
	}
	b.all = append(b.all, t)
	return t, err
}

// defineName registers t under its full name: its namespace, which may be empty, a point, and its name. It returns the namespace.
func (b *typeBuilder) defineName(n *avro.SchemaNode, t *Type) string {
	namespace, name := n.Namespace, n.Name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		namespace, name = name[:i], name[i+1:]
	}
	b.named[namespace+"."+name] = t
	return namespace
}

var fixedSizes = map[Kind]int{Null: 0, Boolean: 1, Float: 4, Double: 8}

// measureSize computes Least and constant from the types below.
func (t *Type) measureSize() (least int, constant bool) {
	switch t.Kind {
	case Null, Boolean, Float, Double:
		return fixedSizes[t.Kind], true
	case Fixed:
		return t.Size, true
	case Union:
		least = endless - 1
		for _, b := range t.Branches {
			least = min(least, b.Least)
		}
		return least + 1, false
	case Record:
		constant = true
		for i := range t.Fields {
			least = min(least+t.Fields[i].Type.Least, endless)
			constant = constant && t.Fields[i].Type.Constant
		}
		return least, constant
	default:
		return 1, false
	}
}
