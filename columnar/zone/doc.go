// Package zone is the zone map of a payload: for some columns the least and the greatest value, how many are null, and a small Bloom
// filter, in at most 4 KiB. docs/format/zonemap.md is the byte-level reference.
//
// A zone map is made when a payload's rows are first turned into columns ([Builder]), and kept beside the payload's pointer. Whoever
// has a predicate asks [MayMatch] whether any row could satisfy it: false is a proof that none does, true says nothing. So a payload can
// be left out of an answer before it is fetched, and the answer is the same.
//
// # What the maps are bound to
//
// The values of a column follow from its definition: where in a row it is looked for, its type, its default; not from the other columns.
// So a map holds, for each column, a fingerprint of the definition ([Define]), and [Map.Under] keeps those columns whose definition
// in another version of the schema is the same. A map that was learned under version 3 goes on to be of use under version 7, but
// for the columns that changed, and no history of versions is needed to tell.
//
// # Soundness
//
// A map describes all rows of a payload, also those that a category rejects. Every step errs to the side of keeping: a minimum that is
// too long is cut off, a maximum too and then raised; a filter that would be too full is left out; what this package does not know of an
// expression it takes as true, false or null. Values are compared as expressions compare them (package expr): strings bytewise,
// NaN above all numbers, -0 equal to 0.
package zone
