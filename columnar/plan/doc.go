// Package plan binds a parsed query to one version of a category's schema. It resolves names to columns, determines types and
// conversions, and derives what allows the runner of the query to save work.
//
// [Bind] makes a [Plan] of a parsed query. It follows PostgreSQL's rules for the types of constants, operators and functions;
// docs/columnar/sql.md lists the differences. Conversions are calls of expr.Cast, and constants are folded. Terms are normalized:
// a constant is on the right of a comparison, NOT is pushed into comparisons, AND and OR are flat. now() is a constant.
//
// # Bounds
//
// A plan has at most [MaxNodes] nodes, counted as a tree: an expression that the plan uses twice (the operand of BETWEEN) counts
// twice. Regular expressions are bounded in length and in program size.
//
// # Determinism
//
// A query is sent as its canonical text, the schema version and now. They determine the plan.
package plan
