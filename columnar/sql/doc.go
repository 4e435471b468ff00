// Package sql reads the text of queries: a lexer, a recursive-descent parser, the syntax tree and its canonical text.
//
// The language is a part of PostgreSQL's, see docs/columnar/sql.md: one SELECT over one category, or the predicate of one alone. What a
// name means and which type an expression has is decided by package plan, for which the tree keeps the byte at which each part begins.
//
// # Bounds
//
// The text comes from anybody. It is at most [MaxText] bytes, which is checked before anything is read; nothing nests deeper than
// [MaxDepth], which bounds the recursion of everything that walks the tree; an IN list has at most [MaxList] elements. Time and memory
// are linear in the length of the text.
//
// # Canonical text
//
// [Select.String] writes a tree such that [Parse] makes the same tree of it, but for positions. It is what travels between processes:
// two texts that differ in blanks, in the case of keywords or in needless parentheses are the same query.
package sql
