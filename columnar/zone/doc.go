// Package zone implements the zone map of a payload: for some columns the least and greatest value, the null count and a small
// Bloom filter, in at most 4 KiB. docs/format/zonemap.md is the byte-level reference.
//
// A zone map is made when a payload's rows are first turned into columns ([Builder]), and kept beside the payload's pointer.
// [MayMatch] reports whether any row can satisfy a predicate: false is a proof that none does, true means nothing. So a payload
// can be skipped before it is fetched, without changing the result.
//
// # What the maps are bound to
//
// The values of a column depend only on its definition (path, type, default), not on other columns. So a map holds a fingerprint
// of the definition of each column ([Define]). [Map.Under] keeps the columns whose definition is the same in another version of
// the schema. A map made under version 3 remains useful under version 7 except for the changed columns, and no version history is
// needed.
//
// # Soundness
//
// A map describes all rows of a payload, including those that a category rejects. Every step errs on the side of keeping the
// payload: a long minimum is truncated, a long maximum is truncated and then raised, an overfull filter is dropped, and an
// unknown expression may be true, false or null. Values compare as in expressions (package expr): strings bytewise, NaN above all
// numbers, -0 equal to 0.
package zone
