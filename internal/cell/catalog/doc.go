// Package catalog is the copy of the categories that a role holds. It follows the control plane's watch, so that the hot paths
// look a category up without asking anybody, and keeps its last good state in a file, so that a role that starts while the
// control plane is unavailable serves with what it knew.
//
// Lookups take no lock and allocate nothing: the categories stand in hash tables of atomic pointers that only the one goroutine
// behind the watch changes (and Resolve, under the same lock). A category is never changed once it is in a table; a change puts
// another one in its place. So what a lookup returns is a consistent category, which the caller may keep and must not change.
//
// A category that was created or changed a moment ago may not have arrived yet. Resolve asks the control plane, for those who would
// refuse something for what the view has, within limits that keep a flood of questions from reaching it.
//
// docs/format/catalog.md describes the file.
package catalog
