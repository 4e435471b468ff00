// Package view decides which views of a category's payloads a read proxy makes for the running queries. It does no I/O: it takes
// requests, measurements and the time, and returns the view that serves a query.
//
// # Needs, shapes, views
//
// A query needs columns, and the rows for which a predicate is true ([Need]). A [Shape] describes a view of payloads: a set of
// columns, and the rows for which one of several predicates is true. A shape covers a need if it has its columns and all its
// rows: one of the shape's alternatives is the need's predicate or follows from it. The reader evaluates its own query over the
// view, so any shape that covers its need gives the same answer; an exact one leaves nothing to filter. A [View] is a shape with
// a number and its figures.
//
// # The policy
//
// A query is running while it sends requests ([Config.Expiry]). A model with a few constants (cost.go) estimates the cost of
// views. Making a view costs a walk over the rows, something for each column of the predicates, and something for each column of
// each kept row. Serving it costs each reader something for each column of each row. Queries share a view if the saved walks are
// worth more than the columns and rows that readers get in vain. That depends on measurements: the share of rows that each
// predicate keeps, the request rate of each query, and whether queries request the same payloads at all, without which sharing
// saves nothing.
//
// A new query is served by a view that covers its need if that is cheaper than a view of its own. Otherwise it gets its own, so
// that its share of rows is measured. From time to time ([Config.Rebalance]) all queries of the category are divided again: the
// busiest first, each joins the view with the lowest total cost, at most [Config.Views] of them; then views are merged in pairs
// as long as that saves cost. The division is adopted only if it is cheaper by a tenth than the present one, because cached
// payloads of former views are of less use afterwards. Unchanged shapes keep their numbers.
//
// Former views are remembered for a while: their cached payloads still serve needs that they cover.
package view
