// Package value is how single values are written: PostgreSQL's input and output syntax, for the constants of queries, casts from and to
// text, and answers that people read.
//
// Append functions write what PostgreSQL prints with its default settings and the time zone UTC; Parse functions read that and what else
// PostgreSQL reads of the type, with these exceptions: times are read in their ISO forms (see [ParseTimestamp]), infinity is no time and
// no decimal, NaN is no decimal, and floats have no hexadecimal form. A timestamp is an instant (PostgreSQL's timestamptz): a text without
// an offset is UTC.
//
// Every Parse function takes a text of any length in time linear to it, and never panics.
package value
