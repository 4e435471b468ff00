// Package catalog is a role's copy of the categories. It follows the control plane's watch, so that the hot paths look up a
// category locally. It keeps its last good state in a file, so that a role that starts while the control plane is unavailable
// serves with that state.
//
// Lookups take no lock and allocate nothing: the categories are in hash tables of atomic pointers. Only the goroutine of the
// watch changes the tables (and Resolve, under the same lock). A category is never changed once it is in a table; a change
// replaces it by another value. So a lookup returns a consistent category, which the caller may keep and must not change.
//
// A category that was created or changed a moment ago may not have arrived yet. Callers that would refuse something because of
// the view's state call Resolve first. It asks the control plane, within limits that keep a flood of requests from it.
//
// docs/format/catalog.md describes the file.
package catalog
