// Package aggregate groups the rows of Arrow batches incrementally: GROUP BY with count, sum, min, max, avg, approximate distinct
// counts and approximate quantiles.
//
// # Operation
//
// An [Aggregator] reads one batch after the other and keeps one state per group, never rows, so its memory depends only on the
// groups. [Aggregator.Result] may be called at any time, so a query that follows a stream can show running results. For each
// batch, package vector evaluates the expressions of keys, arguments and filters once. The key columns are hashed to find each
// row's group number. Then every aggregate runs one loop over (group number, value). A time window is a key like any other:
// date_trunc('minute', _time), or date_bin.
//
// The result is a batch with one row per group, in order of first appearance. Columns $k0, $k1, ... are the keys; $a0, $a1, ...
// are the aggregates. Package plan binds a query's output to these names. HAVING is applied. Without keys there is always exactly
// one group, even without rows.
//
// # Values
//
// Null is a group of its own. Keys compare as = does: -0 equals 0, NaN equals itself, and intervals compare by length (a month
// has 30 days). Aggregates skip nulls, and rows for which FILTER is not true. Without any value count is 0 and every other
// aggregate is null.
//
// Sums of integers and decimals are exact and do not depend on the order of the rows: they are kept in 192 bits. A sum that does
// not fit the result type is null and counted in [Stats].Errors. Sums of float64 are added in row order, as in PostgreSQL.
//
// approx_count_distinct is exact up to 1536 values in a group. Above that it is a HyperLogLog with a standard error of 0.8 %.
// approx_quantile is a sketch with a relative error of 1 % of the value (not of the rank) over a range of 10^17 between a group's
// smallest and greatest magnitude; values below that range count as the smallest magnitude inside it. Its result is never below
// the smallest or above the greatest number of the group. Neither depends on the order of the rows or on batch boundaries, so a
// query has one result however it is run.
//
// # Memory
//
// [Limits] bounds the groups and the bytes. An Aggregator that reached a limit returns [ErrLimit] and can't be used further: rows
// can't be left out of a result, so there is none.
package aggregate
