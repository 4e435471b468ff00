// Package sqlserver is the role that answers SQL queries over the network: over HTTP at /v1/query, and over Arrow Flight SQL.
// Each query is a query of package columns, which reads the cell like any consumer. Beside them it answers tails at /v1/tail: the messages
// of a category as they come, as lines or server-sent events (tail.go).
//
// # A query's life
//
// A request is checked, then admitted or refused ([Config.MaxQueries]), then bound. Mistakes in its text are reported before the
// answer begins. Then one goroutine takes batches from the result and another writes them, without a buffer between them: a slow
// client slows the reading, and the server holds only the batch that is being written and the next one. Large batches are written
// in slices.
//
// A query ends with its last row, at a bound of Config, when its client goes away (which cancels its context and all its
// requests), when its client has accepted nothing for [Config.StallTimeout], or when the server closes.
//
// # Complete or truncated answers
//
// An incomplete answer must never look complete. Over HTTP/1.1 the only end marker that every client checks is that of the
// transfer; Arrow's own end marker is optional, and CSV has none. So an answer that fails after its first byte is truncated: the
// transfer is aborted, which clients report (curl exits with 18, Python raises IncompleteRead). JSON lines first state the error
// in a last line. A complete answer has its statistics in trailers. gRPC has a status at the end of each stream.
//
// # Not included
//
// The server stores no queries: a Flight ticket contains the query, so any server can answer it at any time, and runs it anew.
package sqlserver
