package schema

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// Marshal returns the schema as JSON on one line. The same schema always gives the same text. [Parse] reads it.
func (s *Schema) Marshal() []byte { return marshalJSON(documentOf(s, false)) }

// YAML returns the schema as an editable YAML file. [Parse] reads it.
func (s *Schema) YAML() ([]byte, error) {
	// The YAML library reads JSON: its nodes keep the order of the keys and drop the style.
	var doc yaml.Node
	if err := yaml.Unmarshal(marshalJSON(documentOf(s, true)), &doc); err != nil {
		return nil, err
	}
	setStyle(&doc, "")
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// setStyle sets the YAML style: paths and small fields on one line, the rest in blocks, quotes only where needed.
func setStyle(n *yaml.Node, key string) {
	n.Style &^= yaml.DoubleQuotedStyle
	switch {
	case key == "path", key == "aliases", key == "columns", key == "fields" && smallField(n):
	default:
		n.Style &^= yaml.FlowStyle
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		var plain yaml.Node
		plain.SetString(n.Value)
		n.Style = plain.Style
		if (&yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}).ShortTag() != "!!str" {
			n.Style = yaml.DoubleQuotedStyle
		}
	}
	for i, c := range n.Content {
		name := key
		if n.Kind == yaml.MappingNode {
			if name = ""; i%2 == 1 {
				name = n.Content[i-1].Value
			}
		}
		setStyle(c, name)
	}
}

// smallField reports whether an object fits on one line.
func smallField(n *yaml.Node) bool {
	length := 0
	for _, c := range n.Content {
		if length += len(c.Value) + 2; c.Kind != yaml.ScalarNode || c.Value == "doc" {
			return false
		}
	}
	return n.Kind == yaml.MappingNode && length < 100
}

// The documents that a schema is marshaled as. The order of fields is the order of keys.
type (
	historyDocument struct {
		Next     uint32           `json:"next"`
		Infer    bool             `json:"infer,omitempty"`
		Versions []schemaDocument `json:"versions"`
	}
	schemaDocument struct {
		*Schema
		Fields []fieldDocument `json:"fields"`
	}
	fieldDocument struct {
		Name     string          `json:"name"`
		Type     string          `json:"type"`
		Nullable *bool           `json:"nullable,omitempty"` // only false is written
		Path     []string        `json:"path,omitempty"`
		Aliases  [][]string      `json:"aliases,omitempty"`
		Default  json.RawMessage `json:"default,omitempty"`
		Doc      string          `json:"doc,omitempty"`
		Fields   []fieldDocument `json:"fields,omitempty"`
	}
)

// marshalJSON writes a document as JSON on one line.
func marshalJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // writing to memory can't fail
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// documentOf returns the document of a schema. With expand, structs whose text would be a long line list their fields separately.
func documentOf(s *Schema, expand bool) schemaDocument {
	return schemaDocument{s, fieldDocuments(s.Fields, expand)}
}

func fieldDocuments(fields []Field, expand bool) []fieldDocument {
	docs := make([]fieldDocument, len(fields))
	for i := range fields {
		f, d := &fields[i], &docs[i]
		*d = fieldDocument{Name: f.Name, Type: f.Type.Text(), Path: f.Path, Aliases: f.Aliases, Default: json.RawMessage(f.Default), Doc: f.Doc}
		if !f.Nullable {
			d.Nullable = new(bool)
		}
		const longLine = 80
		// Fields of a struct with more properties than a type's text can express are written out.
		in := innermostType(&f.Type)
		if in.Kind == Struct && (!plainFields(in.Fields) || expand && len(d.Type) > longLine) {
			d.Type = f.Type.wrapText("struct")
			d.Fields = fieldDocuments(in.Fields, expand)
		}
	}
	return docs
}

// wrapText returns the text of the enclosing lists and maps around the text inside.
func (t *Type) wrapText(inside string) string {
	if t.Elem == nil {
		return inside
	}
	return t.Kind.String() + "<" + t.Elem.wrapText(inside) + ">"
}

// plainFields reports whether a type's text expresses all properties of a struct's fields.
func plainFields(fields []Field) bool {
	for i := range fields {
		f := &fields[i]
		if len(f.Path) > 0 || len(f.Aliases) > 0 || f.Default != "" || f.Doc != "" {
			return false
		}
		if in := innermostType(&f.Type); in.Kind == Struct && !plainFields(in.Fields) {
			return false
		}
	}
	return true
}
