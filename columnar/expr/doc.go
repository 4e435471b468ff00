// Package expr is what a query's expressions are once they are bound to a schema: typed trees over named columns.
//
// The binder (package plan) makes them; the evaluator (package vector), the transcoders and the zone maps read them. Every conversion
// is an explicit [Cast]: the arguments of an operator have the types that [Op] documents, so that whoever evaluates compares like with
// like. Trees are immutable.
//
// # Errors of rows
//
// What PostgreSQL refuses at run time (a division by zero, a number out of range, a text that is no number) makes the value null here,
// and is counted: an answer must not depend on which of two terms was evaluated first, and one row must not end a query that follows a
// stream. Everything else is as in PostgreSQL, with the collation C.
package expr
