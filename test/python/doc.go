// Package python queries a cell with the clients that people have: urllib and pyarrow, polars, DuckDB and curl over HTTP, and over Flight
// SQL pyarrow.flight and ADBC. The same rows come out of each, as do the errors, and none takes an answer that was cut for a whole one.
//
// It needs python3 and the packages of requirements.txt, which environment.sh installs outside of the repository; and curl.
package python
