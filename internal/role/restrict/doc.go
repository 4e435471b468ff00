// Package restrict is what a reader has of a category whose grants are limited to some rows and columns (docs/adr/0080-rows-and-columns.md).
//
// A [Limit] is the end of a rule: `where region = 'eu' mask card`. A [Restriction] has the limits of all rules by which a reader may read a category: it may see
// a value that one of them shows. [Compile] applies it to a version of the category's schema: the [Table] has the schema that the reader
// knows ([Table.Schema]), and makes of a stored payload the payload that the reader gets, as messages ([Table.Frames]) or as rows ([Table.Rows]). Both have the same rows in
// the same order, so that positions agree.
//
// Nothing else in the system knows what a limit means. Who can't apply a restriction, since a column is gone, must not read: [ErrInapplicable].
package restrict
