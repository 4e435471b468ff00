// Package merge decides the order of a stream: a plain state machine that is told what is in the physical shards of a category
// and says which record comes next, which records to read, and when to wait. It does no I/O, starts nothing and knows no clock;
// package readstream drives it. A Merge is used by one goroutine at a time.
//
// Each shard has a cursor: the LSN that comes next, a short queue of records from there on, the tail as last heard, and a lower
// bound of the persisted time of whatever follows. A cursor whose queue is empty is either at the tail and waits for news, or before
// it and wants a read. Records come from reads and from a subscription to the tail, which may repeat each other or leave holes: the
// cursor takes what continues its queue and ignores the rest, also what does not fit. Nothing is lost by that, since the tail is known,
// and no shard's full queue ever keeps another shard's records from arriving: the merge can't deadlock on memory.
//
// # Order
//
// Heads of queues are compared by (persisted time, shard, LSN), through a heap: O(log shards) for a record. Shards that want
// a read are read before anything is handed out, so history comes in order of time. How long the merge waits for shards that have
// nothing at the moment is the window's business:
//
//   - Unbounded: not at all. What is there is handed out.
//   - A duration W: a record of time t is handed out when no shard can bring one below t-W any more. So no two records are ever
//     further out of order than W.
//   - Zero: a record is handed out when every shard's next record is known to come later in the order (time, shard, LSN). That
//     order is total, and all streams over the same records hand them out in it.
//
// What a shard may still bring is bounded by its next record's time where that is known, else by the time of its last record or
// by the watermark that goes with its tail. Watermarks of idle shards come together, as one floor under all shards that are at their
// tails ([Merge.Floor]): ten thousand idle shards cost a merge no more than one.
//
// Shards that are not known yet are bounded by the horizon: a shard that did not exist when the caller last looked for shards brings
// no record below the times and watermarks that were seen before. This holds for engines whose clock is one for all shards. The merge
// asks for a look ([Look]) when what it knows of idle or unknown shards is too old to let the next record go. A shard that can't be
// read keeps back what its window does not allow before it: the merge says [Idle], and the caller decides for how long.
//
// Records in queues take at most Options.Limit, shared fairly among the cursors that have or want something, and what Options.Budget
// leaves. When even the first record of a cursor does not fit, only its time is kept, and the record is read when it is its turn; that
// read is always accepted. So a Merge holds at most Limit and one record, and some 250 bytes for each shard.
//
// testdata/*.txt shows all this step by step.
package merge
