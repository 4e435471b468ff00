// Package view decides which views of a category's payloads a read proxy makes for the queries that are running. It does no I/O: it takes
// what is asked for, what was measured and the time, and says which view serves a query.
//
// # Needs, shapes, views
//
// A query needs columns, and rows for which a predicate is true ([Need]). A [Shape] is what can be made of a payload: a set of columns, and
// the rows for which one of several predicates is true. A shape covers a need if it has its columns, and all its rows: one of
// the shape's alternatives is the need's predicate or follows from it. Whoever asks evaluates its own query over what it gets, so
// any shape that covers its need gives the same answer; an exact one leaves nothing to filter. A [View] is a shape with a number and its
// figures.
//
// # The policy
//
// A query is running as long as it asks ([Config.Expiry]). What views cost is estimated in a model with a few constants (cost.go): to make
// a view costs a walk over the rows, something for each column of the predicates, and something for each column of each row that is
// kept; to serve it costs each reader something for each column of each row that it gets. Queries are merged into one view
// where the walks that this saves are worth more than the columns and rows that readers get in vain. That depends on what was measured:
// the share of rows that each predicate keeps, how often each query asks, and whether queries ask for the same payloads at all, without
// which nothing is saved.
//
// A query that comes is served by a view that covers its need if that is cheaper than one of its own, else by one of its own, so that its
// share of rows is measured. From time to time ([Config.Rebalance]) all queries of the category are divided anew: the busiest first,
// each joins the view that makes the sum cheapest, at most [Config.Views] of them; then views are merged in pairs as long as that saves.
// The division is taken over only if it is cheaper by a tenth than the present one, because what is cached of the views of
// before is of less use afterwards. Shapes that stay keep their numbers.
//
// Views of before are remembered for a while: what is cached of them still serves needs that they cover.
package view
