// Package postgres compares queries over batches of columns with a real PostgreSQL that holds the same rows: thousands of random
// queries, with equal sets of rows as answers, groups of them in equal order with equal aggregates, and tables of edge cases of single functions.
//
//	go test ./test/postgres                       # as many queries as CI runs
//	go test ./test/postgres -queries 50000        # more
//	go test ./test/postgres -seed 12345           # the same again
//
// Where PostgreSQL ends a query with an error of one row our answer has a null there (docs/columnar/sql.md). To compare that too, what
// can fail is asked of PostgreSQL through functions that turn its errors into nulls; so an expression has two texts, see [pair].
//
// It needs PostgreSQL's server (Debian's package postgresql). It starts one of its own, for the tests only, and as another user when
// the tests run as root, which PostgreSQL refuses.
package postgres
