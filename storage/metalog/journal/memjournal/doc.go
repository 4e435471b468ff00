// Package memjournal keeps journals in memory, for tests and simulations. A [Store] is what would be the cluster; each replica
// opens a [Journal] of its own, so that one of them can be cut off.
//
//	store := memjournal.New()
//	j := store.Open()
//	j.SetFault(func(ctx context.Context, c memjournal.Call) error { ... })
//
// It starts no goroutine and uses no clock, so it can live inside a testing/synctest bubble.
package memjournal
