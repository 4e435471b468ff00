// Package etcdjournal keeps a journal in an etcd cluster, under a prefix of its keys:
//
//	head             the head
//	e/SEQ            an entry, or the list of its parts
//	p/SEQ/TRY/N      a part of an entry above 1 MiB
//
// SEQ is in 16, N in 4 hexadecimal digits. docs/format/journal.md describes the values. An append is one transaction: if the head's
// mod_revision is the known one, put the entry and the head, else get the head.
//
// Parts are put before the transaction that names them; those of tries that failed are removed by the leader later. Followers watch
// the head only, and read entries by range: large events through watches are slow in etcd.
//
// # Upkeep
//
// The handle that swaps heads, which is the leader's, compacts etcd's history, so that beats take no room, and asks for the size of
// the database. Beyond [Config.FullBytes] it refuses entries, well before etcd's own quota, which would refuse everything until an
// operator intervenes. A user without etcd's role root may not compact: somebody else has to then, see [Journal.Neglected].
package etcdjournal
