package aggregate

import (
	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/columnar/schema"
)

// dictionaryCodes maps the codes of a dictionary to group numbers, for a batch whose only key is a dictionary column.
type dictionaryCodes struct {
	column  *array.Dictionary
	values  columnValues // keeps the dictionary's texts
	numbers []uint32
	null    uint32
}

// dictionaryOfKey returns the codes of the batch, or nil if it is not grouped by a dictionary column alone.
func (a *Aggregator) dictionaryOfKey() *dictionaryCodes {
	if len(a.keys) != 1 {
		return nil
	}
	in := &a.inputs[a.keys[0]]
	d, ok := in.column.(*array.Dictionary)
	if !ok || d.Dictionary().Len() > 2*d.Len() {
		return nil
	}
	c := &dictionaryCodes{column: d, null: none, numbers: make([]uint32, d.Dictionary().Len())}
	for i := range c.numbers {
		c.numbers[i] = none
	}
	return c
}

// keyIsArgument reports whether the only key is also needed as values.
func (a *Aggregator) keyIsArgument() bool {
	for i := range a.aggregates {
		if a.aggregates[i].arg == a.keys[0] || a.aggregates[i].filter == a.keys[0] {
			return true
		}
	}
	return false
}

func (c *dictionaryCodes) findGroups(t *groupTable, from, to int, dst []uint32) error {
	nulls := c.column.NullN() > 0
	for i := from; i < to; i++ {
		number := &c.null
		if !nulls || c.column.IsValid(i) {
			number = &c.numbers[c.column.GetValueIndex(i)]
		}
		if *number == none {
			c.values.loadRows(schema.String, c.column, i, i+1)
			var found [1]uint32
			if err := t.findRows([]*columnValues{&c.values}, 1, nil, found[:], nil); err != nil {
				return err
			}
			*number = found[0]
		}
		dst[i-from] = *number
	}
	return nil
}
