// Package value parses and formats single values in PostgreSQL's syntax, for constants in queries, casts from and to text, and
// readable results.
//
// Append functions write PostgreSQL's output with its default settings and the time zone UTC. Parse functions read that and
// PostgreSQL's other input forms, with these exceptions: times are read only in ISO forms (see [ParseTimestamp]), times and
// decimals have no infinity, decimals have no NaN, and floats have no hexadecimal form. A timestamp is an instant (PostgreSQL's
// timestamptz): a text without an offset is in UTC.
//
// Every Parse function accepts a text of any length, takes time linear in its length, and never panics.
package value
