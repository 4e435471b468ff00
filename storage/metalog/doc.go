// Package metalog is the contract of the metadata store: append-only logs of small records ("physical shards"), of which there
// may be hundreds of thousands, in one engine that can append to many of them in one atomic, durable transaction. A record is a
// pointer to a payload in the blob store; the engine does not look inside.
//
// [Log] is the interface. Package pebblelog implements it on a local folder, package remote over RPC, and package metalogtest
// holds the acceptance suite that every implementation passes. What all engines must decide alike stands here as plain functions
// without I/O: limits ([Append.Validate] and its neighbours) and producer sequences ([ProducerState.Continue]).
//
// # A shard's life
//
// A shard exists from its first [Log.Open]. Each Open raises its epoch, and only the newest epoch appends, so a writer that was
// replaced without knowing can do no harm. Its records have dense LSNs from 1 and persisted times that never decrease.
// [Log.Trim] removes the oldest records; [Log.Seal] ends the shard.
//
// [Log.Retire] ends all shards of a category, those that do not exist yet included. So a writer that has not heard that the category
// was deleted cannot have a message acknowledged that nobody will ever read. [Log.Erase] removes what is left of such a category.
//
// # Annotations
//
// Beside a record an engine keeps small annotations ([Log.Annotate]): what was learned of the payload that it points to, like its zone map.
// They are of use, and never needed: they are not part of the record, are not acknowledged with it, may be lost, and are removed with it.
//
// # Watermarks
//
// A watermark W of a shard is a promise: whatever is appended to it later has a persisted time of at least W. Readers merge
// shards by it. The promise outlives the engine's process, also where the next one starts with a clock that went back.
package metalog
