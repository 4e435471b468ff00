// Package journal replicates the changes of a metadata engine: it is an ordered list of entries with one head that is changed by
// compare-and-swap. Replicas of an engine apply the entries, and one of them at a time, the leader, appends.
//
// [Journal] is what an engine of journals must do. Package memjournal keeps one in memory, package etcdjournal in an etcd cluster.
// suite_test.go is the acceptance suite of engines. What all engines need is built on the interface here:
//
//   - [Lead] takes over, and returns the [Leader] that appends, beats and hands over. It resolves calls with unknown outcomes.
//   - [Reader.ReadEntries] reads, decodes, and checks that nothing is missing and nothing was exchanged.
//   - [CheckPosition] finds a journal that was set back, for example by restoring a backup.
//
// # Why the head, and not a free number, decides
//
// An entry is stored in the transaction that moves the head, if the head has not changed since the leader saw it. "Store under the
// next number if it is free" would look simpler and lose entries: once old numbers are trimmed, a writer that slept finds its
// number free, and acknowledges what nobody will read. model_test.go searches all interleavings of a small model, finds none that
// loses an entry, and finds those of the simpler rules.
//
// # Rules
//
//   - A takeover swaps the head that its replica has applied up to. Whoever swaps a head that it has not applied would decide the
//     next entries without knowing the last ones.
//   - Entries are trimmed up to the head's Snapshot at most, which is set when the snapshot can be read by everybody.
//   - A change with an unknown outcome is repeated as it was until its outcome is known. Nothing else is tried before.
package journal
