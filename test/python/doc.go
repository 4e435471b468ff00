// Package python queries a cell with common clients: urllib with pyarrow, polars, DuckDB and curl over HTTP, and pyarrow.flight and ADBC
// over Flight SQL. Each must return the same rows and the same errors, and none may take a truncated answer for a complete one.
//
// It needs python3 and the packages of requirements.txt, which environment.sh installs outside of the repository; and curl.
package python
