// Package schema defines the bytes of a journal: its head and its entries. docs/format/journal.md describes them. The package does
// no I/O.
//
// A [Head] is small and read by everybody; an [Entry] has what one group of changes does to the keys of a replica. Entries form a
// chain: each contains the hash of the one before it, and the head the hash of the last one ([ChainAfter]).
package schema
