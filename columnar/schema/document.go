package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// nodeKind is the kind of a document node.
type nodeKind uint8

const (
	nodeText nodeKind = iota + 1
	nodeNumber
	nodeBool
	nodeNull
	nodeList
	nodeObject
)

// docNode is a node of a YAML or JSON document, with its position.
type docNode struct {
	kind nodeKind
	// text is a scalar as written, without quotes.
	text  string
	items []*docNode
	// keys holds the keys of an object; items holds the values.
	keys         []string
	seen         map[string]bool
	line, column int
}

// String returns a description of the node for errors.
func (n *docNode) String() string {
	switch n.kind {
	case nodeText:
		return strconv.Quote(clipText(n.text))
	case nodeNumber, nodeBool:
		return clipText(n.text)
	case nodeNull:
		return "null"
	case nodeList:
		return "a list"
	default:
		return "an object"
	}
}

// clipText shortens a text for use in an error.
func clipText(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// appendJSON appends the node as JSON.
func (n *docNode) appendJSON(dst []byte) []byte {
	switch n.kind {
	case nodeText:
		return append(dst, marshalJSON(n.text)...)
	case nodeNumber, nodeBool:
		return append(dst, n.text...)
	case nodeList, nodeObject:
		brackets := "[]"
		if n.kind == nodeObject {
			brackets = "{}"
		}
		dst = append(dst, brackets[0])
		for i, item := range n.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			if n.kind == nodeObject {
				dst = append(append(dst, marshalJSON(n.keys[i])...), ':')
			}
			dst = item.appendJSON(dst)
		}
		return append(dst, brackets[1])
	default:
		return append(dst, "null"...)
	}
}

// Bounds of a document, in addition to its length.
const (
	maxNodes = 100_000
	maxNest  = 64
)

// readDocument parses a text as JSON if it is valid JSON, otherwise as YAML.
func readDocument(text []byte) (*docNode, error) {
	if len(text) > MaxText {
		return nil, problemf("text too long: %d bytes, the limit is %d", len(text), MaxText)
	}
	if !utf8.Valid(text) {
		return nil, problemf("the text is not UTF-8")
	}
	// A node takes a hundred times the memory of its text, so nodes are counted before any is made.
	marks := 0
	for _, c := range text {
		switch c {
		case ',', ':', '\n', '\r', '[', '{', '-', '?':
			marks++
		}
	}
	trimmed := bytes.TrimLeft(text, " \t\r\n\ufeff")
	if len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		r := &jsonReader{text: trimmed, line: 1 + bytes.Count(text[:len(text)-len(trimmed)], []byte("\n")), d: json.NewDecoder(bytes.NewReader(trimmed))}
		r.d.UseNumber()
		return r.readValue(0)
	}
	if marks > maxNodes {
		return nil, problemf("the text is not JSON, and too large to be read as YAML: more than %d lines, commas, colons and brackets", maxNodes)
	}
	return readYAML(text)
}

// jsonReader builds nodes from a valid JSON text.
type jsonReader struct {
	text  []byte
	d     *json.Decoder
	nodes int
	// line is the line number of the offset at; lineStart is the offset of the line's first byte.
	line, lineStart, at int
}

// valuePosition skips to the start of the next value and returns its position.
func (r *jsonReader) valuePosition() (line, column int) {
	to := int(r.d.InputOffset())
	for to < len(r.text) && strings.IndexByte(" \t\r\n,:", r.text[to]) >= 0 {
		to++
	}
	for ; r.at < to; r.at++ {
		if r.text[r.at] == '\n' {
			r.line, r.lineStart = r.line+1, r.at+1
		}
	}
	return r.line, to - r.lineStart + 1
}

func (r *jsonReader) readValue(depth int) (*docNode, error) {
	n := new(docNode)
	n.line, n.column = r.valuePosition()
	if r.nodes++; r.nodes > maxNodes {
		return nil, problemf("too many values: the limit is %d", maxNodes)
	}
	if depth > maxNest {
		return nil, n.problemf("nested too deep: the limit is %d levels", maxNest)
	}
	token, err := r.d.Token()
	if err != nil {
		return nil, problemf("%v", err)
	}
	switch t := token.(type) {
	case string:
		n.kind, n.text = nodeText, t
	case json.Number:
		n.kind, n.text = nodeNumber, t.String()
	case bool:
		n.kind, n.text = nodeBool, strconv.FormatBool(t)
	case nil:
		n.kind = nodeNull
	case json.Delim:
		return n, r.readContainer(n, t, depth)
	}
	return n, nil
}

func (r *jsonReader) readContainer(n *docNode, open json.Delim, depth int) error {
	n.kind = nodeList
	if open == '{' {
		n.kind = nodeObject
	}
	for r.d.More() {
		if n.kind == nodeObject {
			line, column := r.valuePosition()
			key, err := r.d.Token()
			if err != nil {
				return problemf("%v", err)
			}
			if err := n.addKey(key.(string), line, column); err != nil { //nolint:forcetypeassert // the text is valid JSON, whose keys are strings
				return err
			}
		}
		item, err := r.readValue(depth + 1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := r.d.Token()
	return err
}

// addKey adds a key to an object.
func (n *docNode) addKey(key string, line, column int) error {
	if n.seen[key] {
		return &Error{Problems: []Problem{{Line: line, Column: column, Message: fmt.Sprintf("duplicate key %q", clipText(key))}}}
	}
	if n.seen == nil {
		n.seen = map[string]bool{}
	}
	n.seen[key] = true
	n.keys = append(n.keys, key)
	return nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:unmarshal errors:\s*)?(?:line (\d+): )?(.*)$`)

func readYAML(text []byte) (*docNode, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, problemf("the text is empty")
	} else if err != nil {
		p := Problem{Message: err.Error()}
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			p.Line, _ = strconv.Atoi(m[1])
			p.Message = m[2]
		}
		p.Message = "neither JSON nor YAML: " + p.Message
		return nil, &Error{Problems: []Problem{p}}
	}
	var more yaml.Node
	if err := d.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, problemf("the text has more than one document")
	}
	if len(doc.Content) != 1 {
		return nil, problemf("the text is empty")
	}
	return fromYAML(doc.Content[0], 0)
}

func fromYAML(y *yaml.Node, depth int) (*docNode, error) {
	n := &docNode{line: y.Line, column: y.Column}
	if depth > maxNest {
		return nil, n.problemf("nested too deep: the limit is %d levels", maxNest)
	}
	switch y.Kind {
	case yaml.ScalarNode:
		return n, n.setScalar(y)
	case yaml.SequenceNode:
		n.kind = nodeList
	case yaml.MappingNode:
		n.kind = nodeObject
	default:
		return nil, n.problemf("YAML anchors and aliases are not supported")
	}
	for i, c := range y.Content {
		if n.kind == nodeObject && i%2 == 0 { // keys and values alternate
			if c.Kind != yaml.ScalarNode || c.ShortTag() == "!!merge" {
				return nil, (&docNode{line: c.Line, column: c.Column}).problemf("a key must be a text")
			}
			if err := n.addKey(c.Value, c.Line, c.Column); err != nil {
				return nil, err
			}
			continue
		}
		item, err := fromYAML(c, depth+1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	return n, nil
}

var jsonNumber = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$`)

// setScalar sets the node from a YAML scalar. A number or date in a form that JSON does not have becomes a text.
func (n *docNode) setScalar(y *yaml.Node) error {
	n.text = y.Value
	switch tag := y.ShortTag(); tag {
	case "!!null":
		n.kind = nodeNull
	case "!!bool":
		n.kind, n.text = nodeBool, strings.ToLower(y.Value)
	case "!!int", "!!float":
		n.kind = nodeNumber
		if !jsonNumber.MatchString(y.Value) {
			n.kind = nodeText
		}
	case "!!str", "!!timestamp":
		if n.kind = nodeText; y.Style == 0 && jsonNumber.MatchString(y.Value) {
			n.kind = nodeNumber // too large for the YAML library
		}
	default:
		return n.problemf("the YAML tag %s is not supported", clipText(tag))
	}
	if !utf8.ValidString(n.text) { // an escape sequence can produce invalid UTF-8
		return n.problemf("the text is not UTF-8")
	}
	return nil
}
