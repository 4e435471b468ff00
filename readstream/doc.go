// Package readstream is the role that merges the many metadata logs ("physical shards") of a category into one stream of pointers
// for consumers. It serves rpc.ReadStreamService.
//
// The client opens a stream with a StreamStart. The server finds the category's shards, answers with StreamOpened (each shard's
// first LSN and its tail), and sends pointers while the client's credits last, merged by persisted time. Package merge decides
// which pointer comes next, a state machine without I/O; package feed brings new records of the category to all its streams; this
// package does the I/O for both.
//
//	metalog.Subscribe --- new records, tails ----> feed --.
//	metalog.Shards, WatchShards --- shards, time -----^   v
//	metalog.Read <------ what did not fit, history ---- merge --> batch --> send
//	                                                               ^
//	                                        client's credits ------'
//
// A StreamGap reports positions that retention trimmed and records that are damaged. The stream leaves out pointers in buckets of
// other members of a group, and pointers whose payloads can't match a query. It ends with an error, or with StreamEvicted and the
// position of every shard, from which the client resumes elsewhere.
//
// Start reading at [Server.Stream] (server.go), then start.go (what a StreamStart asks for), stream.go (the loop of a stream),
// read.go (reads of the engine) and follow.go (updates from the feed). prune.go leaves pointers out by a query, pressure.go
// shares memory, balance.go moves streams to other servers. DESIGN.md has the reasons: memory, ordering windows, slow engines,
// filters, ends.
//
// Each stream has one mutex, which is never held across I/O, sends included. A feed's mutex may be held around it, never the
// other way round. The server's mutex is never held together with either.
package readstream
