// Package aggregate groups the rows of Arrow batches as they come: GROUP BY with count, sum, min, max, avg, approximate counts of distinct
// values and approximate quantiles.
//
// # How it works
//
// An [Aggregator] takes batches one after the other and keeps a state for each group, never rows: it holds as much memory as there are
// groups, and [Aggregator.Result] may be asked for at any time, so that a query that follows a stream shows running results. For each
// batch the expressions of keys, arguments and filters are evaluated once by package vector; the keys' columns are hashed, a number of
// its group is found for each row, and every aggregate then runs one loop over (number of the group, value). A window of time is
// a key like any other: date_trunc('minute', _time), or date_bin.
//
// The result is a batch with one row for each group, in the order in which groups were first seen, and the columns $k0, $k1, ... of the
// keys and $a0, $a1, ... of the aggregates. Package plan binds what a query puts into its output to these names. HAVING is applied.
// Without keys there is one group, always; it has a row even if no row came.
//
// # Values
//
// Null is a group of its own. Keys are compared as = does: -0 with 0, NaN with itself, intervals by their length (a month has 30 days).
// Aggregates skip nulls, and rows for which FILTER is not true; of no value at all count is 0 and every other aggregate null.
//
// Sums of integers and decimals are exact at any length and do not depend on the order of the rows: they are kept in 192 bits. What does
// not fit the type of the result is null in the end, and counted in [Stats].Errors. Sums of float64 are added in the order of the rows, as
// in PostgreSQL.
//
// approx_count_distinct is exact up to 1536 values in a group; above that it is a HyperLogLog with a standard error of 0.8 %.
// approx_quantile is a sketch with a relative error of 1 % of the value (not of the rank) over a range of 10^17 between a group's smallest
// and greatest magnitude; below that range values count as the smallest magnitude inside. It is never below the smallest or above the
// greatest number of the group. Neither depends on the order of the rows, nor on how they are cut into batches or spread over aggregators that
// are merged, so that one query has one answer however it is run.
//
// # Memory
//
// [Limits] bounds the groups and the bytes. An Aggregator that reached a limit returns [ErrLimit] and is of no further use: rows can't be
// left out of an answer, so there is none.
package aggregate
