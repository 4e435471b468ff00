// Package metalog is the contract of the metadata store: append-only logs of small records ("physical shards"). One engine keeps
// up to hundreds of thousands of logs, and appends to many of them in one atomic, durable transaction. A record is a pointer to a
// payload in the blob store; the engine does not look inside it.
//
// [Log] is the interface. Package pebblelog implements it on a local folder, package remote over RPC. suite_test.go is the
// acceptance suite that every implementation must pass. Decisions that all engines must make alike are plain functions
// without I/O in this package: limits ([Append.Validate] and its neighbours) and producer sequences ([ProducerState.Continue]).
//
// # A shard's life
//
// A shard exists from its first [Log.Open]. Each Open raises its epoch, and only the newest epoch appends, so a writer that was
// replaced without knowing it can do no harm. Its records have dense LSNs from 1 and persisted times that never decrease.
// [Log.Trim] removes the oldest records; [Log.Seal] ends the shard.
//
// [Log.Retire] ends all shards of a category, including those that do not exist yet. A writer that does not know that the
// category was deleted therefore cannot have a message acknowledged that no reader will ever see. [Log.Erase] removes what is
// left of a retired category.
//
// [Log.Remove] takes empty shards that nobody writes off the list of their category, so that nobody has to follow them. A shard that is
// opened again goes on where it was: with its next LSN, and an epoch above all earlier ones.
//
// # Annotations
//
// An engine keeps small annotations beside a record ([Log.Annotate]), such as the zone map of the payload that it points to.
// Annotations are an optimization: they are not part of the record, are not acknowledged with it, may be lost, and are removed
// with it.
//
// # Watermarks
//
// A watermark W of a shard is a promise: every later record of the shard has a persisted time of at least W. Readers merge shards
// by it. The promise outlives the engine's process, even if the next process starts with a clock that was set back.
package metalog
