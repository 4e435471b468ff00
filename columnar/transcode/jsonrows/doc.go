// Package jsonrows reads messages that are JSON objects, or lines of them, into rows.
//
// reader.go reads frames, walk.go walks over one row and notes what it finds in slots, shape.go remembers the keys of the rows before,
// value.go appends nested values, predicate.go and operand.go decide terms of the predicate on slots, and prefilter.go searches the bytes of
// a frame for what a row that passes must have in it.
package jsonrows
