// Package plan gives the text of a query its meaning over one version of a category's schema: which column a name is, which type an
// expression has, which conversions there are, and what whoever runs the query may do to save work.
//
// [Bind] makes a [Plan] of a parsed query. It follows PostgreSQL's rules for the types of constants, operators and functions; where
// there are differences docs/columnar/sql.md says so. Conversions are calls of expr.Cast, constants are folded, and terms are brought to
// few forms: a constant is right of a comparison, NOT is pushed into comparisons, AND and OR are flat. now() is a constant.
//
// # Bounds
//
// A plan has at most [MaxNodes] nodes, counted as a tree: what the text has once and the plan twice (the operand of BETWEEN) counts
// twice. Regular expressions are bounded in length and in the size of their programs.
//
// # Determinism
//
// A query travels as canonical text, version of the schema and now; whoever has those makes the same plan.
package plan
