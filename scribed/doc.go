// Package scribed is the agent that runs on each host. It accepts the writes of the host's producers and forwards them to a write
// proxy. It serves the same WriteService as the write proxy, so a producer can bypass the agent by changing an address.
//
// # Acknowledgement levels
//
// ACK_LEVEL_NONE is answered when the frames are in memory, or in the spool if the memory is full. ACK_LEVEL_SPOOLED is answered
// after a sync of the spool, which concurrent callers share. ACK_LEVEL_COMMITTED is answered with the upstream's results. Without
// a spool, SPOOLED means COMMITTED. With a spool, the agent always asks the upstream for COMMITTED and releases a frame only when
// it is committed: producers do not notice an outage anywhere after the agent until the spool is full.
//
// # Where to start
//
// [Scribed.Write] (write.go) splits a request by category and decides where each entry goes. sendQueue (send_queue.go) is the
// state machine that decides what to send, when, and what goes to the spool; it does no I/O, and the transcripts in
// testdata/queue explain it. send.go makes the requests to the upstream and handles the answers, spooling.go writes to the spool,
// backfill.go forwards the backlog. Package spool is the disk buffer; package deadletter keeps the frames that the cell refuses
// for good. DESIGN.md says how these work together, and why.
//
// # Invariants
//
// accepted + recovered = forwarded + failed + dropped + in memory + in the spool only, for frames, bytes and messages, in every
// scrape of the metrics; recovered counts the frames that the spool held at the start. A dropped frame is never acknowledged
// afterwards. An acknowledged frame is dropped only by DropOldest, MaxAge, or damage, and is counted. No frame of an ordered
// category overtakes the category's backlog, or frames of its producer that another layout placed.
//
// # Locks
//
// Scribed.mu guards the queue. It is not held during a request, a wait, or a spool call that may wait for the disk. The locks of
// the spool and of the log throttle are taken under it.
package scribed
