// Package export writes the result of a query as an aligned table, JSON lines, CSV, an Arrow IPC stream or a Parquet file.
//
//	w, err := export.New(export.JSONLines, out, schema)
//	for batch := range batches {
//		err = w.Write(batch)
//	}
//	err = w.Close()
//
// # Values
//
// The text formats write every value without loss. Integers and decimals have all their digits, and floats have the digits that
// distinguish them from their neighbours. Instants are RFC 3339 in UTC to the microsecond, dates are 2026-11-21, and intervals
// are as PostgreSQL writes them. Bytes are text if they are UTF-8, otherwise \x and hexadecimal digits. Lists, structs and maps
// are JSON, also in the cells of a table and of CSV. The last of equal keys of a map counts, as in a query.
//
// A null is null in JSON, NULL in a table and an empty field in CSV, where an empty text is "". JSON has no NaN and no
// infinities: they are the strings "NaN", "Infinity" and "-Infinity". A table shows control characters as escapes, so that
// messages can't control a terminal.
//
// # Memory
//
// A writer keeps no batch. The text formats and Arrow buffer about 64 KiB. A table buffers up to a thousand rows to align its
// columns. Parquet buffers a row group of at most 64 MiB. A single larger batch adds to that.
package export
