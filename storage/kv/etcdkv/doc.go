// Package etcdkv keeps a kv.Store in etcd, for control planes that share it.
//
// A key is a key of etcd behind a prefix, and a transaction is one of etcd, with its revision. Other users of the same cluster raise the
// revision as well, so revisions have gaps.
//
// This package compacts nothing: the leader of the metadata logs does, for all who use the cluster (etcdjournal). A watch that etcd can no
// longer continue ends with ErrCompacted, as in every engine.
package etcdkv
