// Package kv is the contract of the small, strongly consistent store that the control plane keeps its state in: categories, the
// counter of their ids, the slots of members. It is what etcd offers, cut down to what is needed, so that an embedded engine
// (pebblekv) and an etcd cluster are interchangeable: ordered keys, transactions conditional on the revision of keys, one global
// revision that grows with every transaction that changes something, and watches that replay changes from a revision on.
//
// The usual way to follow a prefix: read all pages of Range, remember the revision of the first page, and Watch after it. Pages
// are read at different revisions, so an event may tell what a page has shown already, or something older: a follower keeps the
// revision of each key and ignores events at or below it. When Watch fails with ErrCompacted, begin again.
//
// Engines: pebblekv keeps a store in a folder, memkv in memory. Package kvtest is the suite that every engine must pass.
package kv
