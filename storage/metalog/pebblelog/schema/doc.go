// Package schema is the format of a metadata folder: the keys and values that package pebblelog keeps in Pebble. It does no I/O
// and can be reviewed without the engine. docs/format/metalog.md is the byte-level reference.
//
// A key begins with one byte for its kind; the numbers in it are big-endian, so keys sort as their numbers do. Every value begins
// with a CRC32C over the key and the rest of the value: a flipped byte, or a value under another key, is damage and is reported
// as [ErrCorrupt]. Numbers in values are little-endian.
//
// Decoding never panics, whatever the bytes, and allocates only the names of engines, which are short.
package schema
