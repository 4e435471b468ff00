// Package kv is the contract of the small, strongly consistent store of the control plane's state: categories, the counter of
// their ids, the slots of members. It is the subset of etcd that the control plane needs, so that an embedded engine (pebblekv)
// and an etcd cluster are interchangeable: ordered keys, transactions conditional on the revision of keys, one global revision
// that grows with every transaction that changes something, and watches that replay changes from a revision on.
//
// The usual way to follow a prefix: read all pages of Range, remember the revision of the first page, and Watch after it. Pages
// are read at different revisions, so an event may repeat what a page already showed, or be older than it. A follower therefore
// keeps the revision of each key and ignores events at or below it. When Watch fails with ErrCompacted, it begins again.
//
// Engines: pebblekv keeps a store in a folder, memkv in memory. suite_test.go is the suite that every engine must pass.
package kv
