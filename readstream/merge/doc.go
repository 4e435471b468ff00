// Package merge decides the order of a stream. It is a plain state machine: it is told what the physical shards of a category
// contain, and says which record comes next, which records to read, and when to wait. It does no I/O, starts no goroutines and
// has no clock; package readstream drives it. A Merge is used by one goroutine at a time.
//
// Each shard has a cursor: the LSN that comes next, a short queue of records from there on, the last known tail, and a lower
// bound of the persisted time of whatever follows. A cursor with an empty queue is either at the tail and waits for updates, or
// before it and wants a read. Records come from reads and from a subscription to the tail; both may repeat records or leave
// holes. The cursor accepts what continues its queue and fits, and ignores the rest. That loses nothing, since the tail is known.
// No shard's full queue ever blocks another shard's records, so the merge can't deadlock on memory.
//
// # Order
//
// Heads of queues are compared by (persisted time, shard, LSN), in a heap: O(log shards) for a record. Shards that want a read
// are read before anything is handed out, so history comes in order of time. The window determines how long the merge waits for
// shards that currently have nothing:
//
//   - Unbounded: it does not wait. What is available is handed out.
//   - A duration W: a record of time t is handed out when no shard can still bring one below t-W. So records are never out of
//     order by more than W.
//   - Zero: a record is handed out when every shard's next record is known to come later in the order (time, shard, LSN). That
//     order is total, and all streams over the same records use it.
//
// A shard's future records are bounded by its next record's time if known, else by the time of its last record or the watermark
// of its tail. Watermarks of idle shards arrive together, as one floor under all shards that are at their tails ([Merge.Floor]):
// ten thousand idle shards cost a merge no more than one.
//
// The horizon bounds unknown shards: a shard that did not exist at the last look for shards brings no record below the times and
// watermarks seen before the look. This requires an engine with one clock for all shards. The merge asks for a look ([Look]) when
// its knowledge of idle or unknown shards is too old to release the next record. A shard that can't be read holds back what its
// window does not allow before it: the merge returns [Idle], and the caller decides for how long.
//
// Queued records take at most Options.Limit, shared equally among the active cursors, and what Options.Budget leaves. If even the
// first record of a cursor does not fit, only its time is kept, and the record is read when it is its turn; that read is always
// accepted. So a Merge holds at most Limit, one record, and about 250 bytes for each shard.
//
// testdata/*.txt demonstrates this step by step.
package merge
