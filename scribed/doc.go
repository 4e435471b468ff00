// Package scribed is the role of a host's agent: it takes the writes of the host's producers and forwards them to a write proxy. It
// serves the same WriteService, so a producer that does not want it changes an address.
//
// # Acknowledgement levels
//
// ACK_LEVEL_NONE is answered when the frames are in memory, or in the spool when the memory is full. ACK_LEVEL_SPOOLED is answered after
// a sync of the spool that all callers of the moment share, ACK_LEVEL_COMMITTED with what the upstream says. Without a spool, SPOOLED is
// COMMITTED. With one, the upstream is always asked for COMMITTED, and a frame leaves the agent only then: producers do not notice an
// outage anywhere after the agent, until the spool is full.
//
// # Where to start
//
// [Scribed.Write] (write.go) splits a request by category and decides where each entry goes. sendQueue (send_queue.go) is the state
// machine of what is sent when and what goes to the spool; it does no I/O, and testdata/queue explains it by transcripts. send.go makes
// the requests to the upstream and deals with the answers, spooling.go writes to the spool, backfill.go forwards the backlog. Package
// spool is the disk buffer, package deadletter keeps what the cell refuses for good. DESIGN.md says how these work together, and why.
//
// # Invariants
//
// accepted + recovered = forwarded + failed + dropped + in memory + in the spool only, for frames, bytes and messages, in every scrape of
// the metrics; recovered is what the spool held at the start. What was dropped is never acknowledged afterwards; what was acknowledged is
// dropped only by DropOldest, MaxAge, or damage, and counted. Nothing of an ordered category overtakes its backlog.
//
// # Locks
//
// Scribed.mu guards the queue. It is not held during a request, a wait, or a call of the spool that may wait for the disk. The locks of the
// spool and of the log throttle are taken under it.
package scribed
