// Package sql parses the text of queries. It has a lexer, a recursive-descent parser, the syntax tree and its canonical text.
//
// The language is a subset of PostgreSQL's, see docs/columnar/sql.md: one SELECT over one category, or a predicate alone. Package
// plan resolves names and types. The tree keeps the byte offset of each part for its errors.
//
// # Bounds
//
// The text is untrusted. Its length is at most [MaxText] bytes, which is checked first. Nesting is at most [MaxDepth] levels,
// which bounds the recursion of everything that walks the tree. An IN list has at most [MaxList] elements. Time and memory are
// linear in the length of the text.
//
// # Canonical text
//
// [Select.String] writes a tree as text. [Parse] makes the same tree from it, apart from positions. Processes exchange this
// canonical text: two texts that differ only in blanks, the case of keywords or redundant parentheses are the same query.
package sql
