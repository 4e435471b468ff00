// Package vector evaluates bound expressions (package expr) over Arrow record batches, one column at a time.
//
// An expression is compiled once for the schema of its batches. [Compile] makes a [Program], which returns a column.
// [CompileFilter] makes a [Filter], which returns the [Selection] of rows for which a condition is true. [Project] makes a
// [Projection], which returns the columns of a result. All three are immutable and safe for concurrent use. The memory for
// intermediate values is pooled and bounded ([MaxMemory]).
//
// # Evaluation
//
// Numbers, times and texts are read directly from the batch's buffers, whatever the arrays' offsets. Results are slices in
// scratch memory; bools and nulls are bitmaps with 64 rows per word. Each operator is a loop over whole columns and gets the set
// of required rows. AND and OR evaluate their terms from cheapest to most expensive, each only for the rows that earlier terms
// left undecided. Operators that are cheap per row compute all rows anyway; the others visit only the set bits.
//
// Texts are offsets into memory that vectors share, so substring, trim, split_part, CASE and element access in lists and maps
// copy nothing. LIKE '%text%', and the text that a regular expression must contain, are searched in the column's memory as a
// whole. For a dictionary column, an expression that depends on this column alone is evaluated once per dictionary value.
//
// # Errors of rows
//
// If an operator has no result (see package expr), the row's value is null and [Stats] counts the row, once per evaluation. Which
// rows are counted may depend on the evaluation order of terms; the result never does.
package vector
