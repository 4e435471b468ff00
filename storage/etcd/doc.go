// Package etcd connects to an etcd cluster, the one of the cell's own members (package member) or one that people run already.
// docs/format/etcd.md lists what is kept there, and the settings that a cluster of others needs.
package etcd
