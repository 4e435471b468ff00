package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/avro"
)

// maxAvroDepth bounds the nesting of an Avro schema, as of the values that it describes.
const maxAvroDepth = 128

// checkAvro reports what keeps the writer's schema of messages from being read, or messages from being read with it.
func checkAvro(text string) error {
	s, err := avro.Parse(text)
	if err != nil {
		return err
	}
	c := avroCheck{records: map[string]*avro.SchemaNode{}, ended: map[*avro.SchemaNode]bool{}}
	root := s.Root()
	if root.Type != "record" && root.Type != "error" {
		return fmt.Errorf("the top type is %s: want a record, whose fields become columns", root.Type)
	}
	if err := c.countTypes(root, 0); err != nil {
		return err
	}
	return c.checkEnds()
}

// avroCheck is a walk over an Avro schema.
type avroCheck struct {
	types int
	// records are the definitions by their full names, order is the same ones as they were met.
	records map[string]*avro.SchemaNode
	order   []*avro.SchemaNode
	// ended are those of which a value has an end.
	ended map[*avro.SchemaNode]bool
}

// countTypes bounds the schema, and notes the definitions of records.
func (c *avroCheck) countTypes(n *avro.SchemaNode, depth int) error {
	if c.types++; c.types > MaxTypes {
		return fmt.Errorf("too many types: the limit is %d", MaxTypes)
	}
	if depth > maxAvroDepth {
		return fmt.Errorf("types are nested too deep: the limit is %d levels", maxAvroDepth)
	}
	var errs []error
	below := func(part *avro.SchemaNode) {
		if len(errs) == 0 && part != nil {
			if err := c.countTypes(part, depth+1); err != nil {
				errs = append(errs, err)
			}
		}
	}
	switch n.Type {
	case "record", "error":
		c.records[fullAvroName(n)] = n
		c.order = append(c.order, n)
		for i := range n.Fields {
			below(&n.Fields[i].Type)
		}
	case "array":
		below(n.Items)
	case "map":
		below(n.Values)
	case "union":
		for i := range n.Branches {
			below(&n.Branches[i])
		}
	default: // without parts
	}
	return errors.Join(errs...)
}

func fullAvroName(n *avro.SchemaNode) string {
	if n.Namespace == "" || strings.Contains(n.Name, ".") {
		return n.Name
	}
	return n.Namespace + "." + n.Name
}

// checkEnds reports a record that holds itself without end. What ends is found in rounds, from records without others on.
func (c *avroCheck) checkEnds() error {
	for changed := true; changed; {
		changed = false
		for _, r := range c.order {
			if !c.ended[r] && c.allFieldsEnd(r) {
				c.ended[r], changed = true, true
			}
		}
	}
	for _, r := range c.order {
		if !c.ended[r] {
			return fmt.Errorf("the record %s contains itself without end: make the reference optional, as a union with null", clipText(r.Name))
		}
	}
	return nil
}

// allFieldsEnd reports whether the values of all fields of a record are known to end.
func (c *avroCheck) allFieldsEnd(r *avro.SchemaNode) bool {
	namespace := r.Namespace
	for i := range r.Fields {
		if !c.typeEnds(&r.Fields[i].Type, namespace) {
			return false
		}
	}
	return true
}

// typeEnds reports whether a value of a type is known to end: lists and maps may be empty, and a union has a branch that ends.
func (c *avroCheck) typeEnds(n *avro.SchemaNode, namespace string) bool {
	switch n.Type {
	case "record", "error":
		return c.ended[n]
	case "union":
		for i := range n.Branches {
			if c.typeEnds(&n.Branches[i], namespace) {
				return true
			}
		}
		return false
	default:
		for _, name := range []string{namespace + "." + n.Type, n.Type} {
			if r := c.records[name]; r != nil {
				return c.ended[r]
			}
		}
		return true
	}
}
