// Package expr has the expressions of a query once they are bound to a schema: typed trees over named columns.
//
// Package plan makes them. Package vector evaluates them; the transcoders and the zone maps read them. Every conversion is an explicit
// [Cast], so that whoever evaluates an operator compares like with like. Trees are immutable.
//
// [Operator] describes what all of them need to know of an operator or a function: its arguments, its result, its cost, what null
// arguments do, and for which orders or truths it holds. The table in operators.go has an entry for each; a new function is an entry there
// and an evaluator in evaluators.go of package vector. [Truths] is three-valued logic, for single values and for sets of possible ones.
//
// # Errors of rows
//
// What PostgreSQL refuses at run time (a division by zero, a number out of range, a text that is not a number) makes the value null here,
// and is counted. An answer must not depend on which of two terms was evaluated first, and one row must not end a query that follows a
// stream. Everything else is as in PostgreSQL, with the collation C.
package expr
