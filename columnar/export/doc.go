// Package export writes the answer of a query for those who asked: a table for people, JSON lines, CSV, an Arrow IPC stream, a Parquet
// file.
//
//	w, err := export.New(export.JSONLines, out, schema)
//	for batch := range batches {
//		err = w.Write(batch)
//	}
//	err = w.Close()
//
// # How values are written
//
// The text formats write every value so that nothing of it is lost: integers and decimals with all their digits, floats with as many as
// tell them from their neighbours, instants as RFC 3339 in UTC to the microsecond, dates as 2026-11-21, intervals as PostgreSQL writes
// them. Bytes are text where they are UTF-8, and else \x and their digits in base 16. Lists, structs and maps are JSON, in the cells of a
// table and of CSV, too; of equal keys of a map the last counts, as in a query.
//
// A null is null in JSON, NULL in a table and an empty field in CSV, where an empty text is "". JSON has no NaN and no infinities: they are
// strings, "NaN", "Infinity" and "-Infinity". A table shows control characters as escapes, so that no message can command a terminal.
//
// # Memory
//
// A writer keeps no batch. The text formats and Arrow hold some 64 KiB, a table up to a thousand rows, which it needs to align its columns,
// and Parquet a row group of at most 64 MiB; a batch that is larger by itself comes on top.
package export
