// Package jsonrows reads messages that are JSON objects, or lines of them, into rows.
//
// reader.go reads frames. walk.go walks over one row and records its findings in slots. shape.go remembers the keys of earlier
// rows. value.go appends nested values. predicate.go and operand.go decide predicate terms on slots. prefilter.go searches a
// frame's bytes for text that every passing row must contain.
package jsonrows
