// Package vector evaluates bound expressions (package expr) over Arrow record batches, a column at a time.
//
// An expression is compiled once for the schema of its batches: [Compile] makes a [Program] that returns a column, [CompileFilter] a
// [Filter] that returns the [Selection] of the rows for which a condition is true, [Project] the columns of an answer. All three are
// immutable and are shared by goroutines; the memory of intermediate values is pooled, and bounded ([MaxMemory]).
//
// # How
//
// Numbers, times and texts are read where the batch has them: buffers are never copied to begin with, whatever the arrays' offsets.
// Results are slices in scratch memory, bools and nulls bitmaps of 64 rows a word. Each operator is a loop over whole columns, and
// is told which rows are wanted: AND and OR evaluate their terms from the cheapest to the dearest, each only in the rows that those before
// have left open. Operators whose rows are cheap compute all rows all the same, the others go from bit to bit.
//
// Texts are places in memory that vectors share, so that substring, trim, split_part, CASE and what takes values out of lists and maps
// copy nothing. LIKE '%text%' and the text that a regular expression must contain are searched for through the column's memory as a
// whole. Where a column is a dictionary, whatever depends on that column alone is evaluated once for each of the dictionary's values.
//
// # Errors of rows
//
// Where an operator has no result (see package expr) the row's value is null and [Stats] counts the row, once an evaluation. Which rows
// are counted may depend on the order in which terms were evaluated, the answer never does.
package vector
