// Package scribed is the role of a host's agent: it takes the writes of the host's producers and forwards them to a write proxy. It
// serves the same WriteService, so a producer that does not want it changes an address.
//
// # Levels
//
// ACK_LEVEL_NONE is answered when the frames are in memory, or in the spool ([Config.Spool], package spool) when the memory has no
// room for them. ACK_LEVEL_SPOOLED is appended to the spool and answered after a sync that all callers of the moment share; its copy
// in memory is forwarded meanwhile, and what the upstream commits first is answered by that. ACK_LEVEL_COMMITTED goes through memory
// and is answered with what the upstream says. Without a spool, SPOOLED is COMMITTED.
//
// With a spool the upstream is always asked for COMMITTED, also for frames of none, and a frame leaves the spool only then: an outage
// anywhere behind the agent is one that its callers do not notice, until the spool's limit.
//
// # Queue
//
// Accepted frames stand in lanes, one for each category that has any. Requests to the upstream take from the lanes in turn, so a
// noisy category delays the others by its share at most, and frames of many callers share a request. The live traffic of a lane is in
// one request at a time: its order is kept, and categories do not wait for each other. A request whose caller waits goes on as it came,
// without a copy, when it has its turn alone.
//
// # Spool
//
// Frames that nobody waits for leave the memory for the spool when they could not be sent for [Config.SpillAfter], and at any age when
// more than [Config.SpillAbove] of the memory is in use. Those of spooled are there already; their copies are dropped. What then is in
// the spool only is the backlog of its category.
//
// Live traffic goes first. The backlog is sent beside it, in one smaller request at a time, with a pause after each that is a multiple
// of the time it took; the multiple grows while live requests take more than one and a half times as long as without backlog. Without
// live traffic the backlog takes half of the requests. [Config.BackfillBytesPerSecond] bounds it besides.
//
// A category is ordered if its rule says Strict, or if it has frames with sequences and is not known to be one whose sequences nobody
// checks. Nothing of an ordered category overtakes its backlog: new frames go behind it, in the spool; those whose caller waits for the
// upstream wait in memory for their turn. Only exactly_once categories check sequences; their order and that of repeatable ones is kept.
// The agent learns which those are from the place of what was stored (writer slot 0); a category of which it has seen nothing yet is taken for one. So after an outage the
// first request with backlog tells, and live traffic goes first again where it may.
//
// # Room
//
// Frames are charged from when they are accepted until they have an outcome. A category may hold a multiple of the memory that is
// free, and of the part of the spool that is free ([Config.Share]): one alone gets most of it, and those that come later find room. What
// is acknowledged and in memory only is counted as if it were in the spool, so that it finds room there when it has to leave. When
// there is no room the category's [Rule] decides: the write is refused with REASON_OVERLOADED and a hint (before it is copied), it
// waits, it is dropped, or older frames are. What was dropped is never acknowledged afterwards; what was acknowledged is dropped only
// by DropOldest, MaxAge, or damage, and counted.
//
// # Failures
//
// What the upstream does not take for the moment stays at the front of its lane and is sent again, with jittered pauses that are never
// shorter than the upstream asks for: for all lanes while the upstream is away, one request at a time; for one lane when it refuses
// that category. Requests with lanes that were refused before are one at a time, too; more take a budget that successful ones fill. The
// log has one line when the upstream goes away and one when it is back.
//
// What it refuses for good is an error for the caller who waits. If nobody does it is dropped, counted, and kept as a dead letter
// ([Config.DeadLetter], package deadletter). A request that is refused as a whole is taken apart to find the frame that is the cause.
// A producer of an exactly_once category that has lost an acknowledged frame is told with its next one, so that it goes on with a new
// epoch.
//
// A sync of the spool that fails is answered to nobody: what was not synced is written to another file, from memory; if that fails,
// too, the callers wait for the upstream.
//
// # Start and end
//
// The backlog of the last run is forwarded; the start does not depend on its size. [Scribed.Close] refuses, forwards what is in memory
// as long as it may, and writes the rest to the spool. [Scribed.Drain] forwards the backlog, too, and says what is left.
//
// What is dropped is also told to the readers of its category ([Config.ReportLosses], package loss): a report, a message of its own, says how
// many messages were dropped, why and when. Reports wait for the upstream in memory, and one is repeated as it was until it is known to be
// taken; only Close puts them into the spool. A crash loses those that wait. Where the spool drops, it does not know of which logical shards:
// such a report says so, and is in shard 0.
//
// # Accounts
//
// accepted + recovered = forwarded + failed + dropped + in memory + in the spool only, for frames, bytes and messages, in every scrape of
// the metrics. recovered is what the spool held at the start.
//
// # Locks
//
// Scribed.mu guards the queue, which is a plain state machine. It is not held during a call of the spool that may wait for the disk, a
// request, or a wait. The spool's and the notes' locks are taken under it.
package scribed
