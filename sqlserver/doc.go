// Package sqlserver is the role that answers SQL queries over the network: HTTP at /v1/query for whatever speaks HTTP, and Arrow Flight SQL
// for clients that speak that. Each query is one of package columns, which reads the cell as any consumer does.
//
// # A query's life
//
// A request is checked, then admitted or refused ([Config.MaxQueries]), then bound. Mistakes of its text are told before
// anything is answered. Then one goroutine takes batches from the result and another writes them, with nothing in between: a client that
// reads slowly holds back the reading, and what the server has in memory of a query is the batch that is being written and the one that
// is next. Large batches are written in slices.
//
// A query ends with its rows, at a bound of Config, when its client goes away (its context ends, and with it everything that is
// read for it), when its client has read nothing for [Config.StallTimeout], or when the server closes.
//
// # Whole or cut
//
// No answer that is not whole may look as if it were. Over HTTP/1.1 the only sign of the end that every client heeds is that of the
// transfer; Arrow's own end marker is optional, and CSV has none. So an answer that fails after its first byte is cut: the transfer is
// aborted, which clients report (curl exits with 18, Python raises IncompleteRead). JSON lines say why in a last line before that. The
// statistics are in trailers of what is whole. gRPC has a status at the end of each stream.
//
// # What is not done
//
// Nobody is asked who they are: as on the rest of the address, who can reach it may read (docs/operations.md). Queries are not
// remembered: a Flight ticket is the query, so any server can answer it, at any time, and it is run anew.
package sqlserver
