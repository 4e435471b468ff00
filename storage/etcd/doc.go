// Package etcd connects to an etcd cluster, the one of the cell's own members (package member) or one that people run already. What is
// kept there is described in docs/format/etcd.md.
package etcd
