// Package expr defines bound expressions: typed, immutable trees over named columns.
//
// Package plan makes them, package vector evaluates them, and the transcoders and zone maps inspect them. Every conversion is an
// explicit [Cast], so an operator's arguments always have matching types.
//
// [Operator] describes an operator or function for all of them: its arguments, result and cost, the effect of null arguments, and
// the orders or truths for which it is true. Each has an entry in the table in operators.go. A new function needs an entry there
// and an evaluator in evaluators.go of package vector. [Truths] is three-valued logic, for single values and for sets of possible
// values.
//
// # Errors of rows
//
// Where PostgreSQL fails at run time (a division by zero, a number out of range, a text that is not a number), the value is null
// here, and counted. A result must not depend on which of two terms is evaluated first, and one row must not end a query that
// follows a stream. Everything else is as in PostgreSQL with the collation C.
package expr
