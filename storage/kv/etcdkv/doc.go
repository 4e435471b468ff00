// Package etcdkv keeps a kv.Store in etcd, for control planes that share it.
//
// A key is a key of etcd behind a prefix, and a transaction is one of etcd. A revision is etcd's plus a base that is fixed when the store
// begins: a store that was moved here goes on above the revisions that it had (CreateBase). Other users of the same cluster raise etcd's
// revision as well, so revisions have gaps.
//
// Every call but Watch ends within Config.RequestTimeout (a Range of many pages within four of them), also while a majority of etcd's
// members is away. A Commit without an answer may have been applied. A Watch waits, and goes on where it was.
//
// This package compacts nothing: the leader of the metadata logs does, for all who use the cluster (etcdjournal). A watch that etcd can no
// longer continue ends with ErrCompacted, as in every engine.
//
// An etcd that is at an earlier revision than this process saw, or another cluster, is refused with ErrWentBack by every call from then on.
//
// docs/format/etcd.md has the keys, and the settings that a cluster of others needs.
package etcdkv
