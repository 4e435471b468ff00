// Package postgres compares queries over batches of columns with a real PostgreSQL that holds the same rows. Thousands of random queries
// must return equal sets of rows, and groups in equal order with equal aggregates. Tables have edge cases of single functions.
//
//	go test ./test/postgres                       # as many queries as CI runs
//	go test ./test/postgres -queries 50000        # more
//	go test ./test/postgres -seed 12345           # the same again
//
// Where one row makes PostgreSQL end a query with an error, our answer has a null (docs/columnar/sql.md). To compare that too, PostgreSQL
// computes expressions that can fail through functions that turn its errors into nulls; so an expression has two texts, see [pair].
//
// It needs PostgreSQL's server (Debian's package postgresql). It starts a server for the tests only. If the tests run as root, which
// PostgreSQL refuses, the server runs as another user.
package postgres
