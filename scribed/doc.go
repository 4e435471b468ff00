// Package scribed is the role of a host's agent: it takes the writes of the host's producers and forwards them to a write proxy. It
// serves the same WriteService, so a producer that does not want it changes an address.
//
// # Queue
//
// Accepted frames stand in lanes, one for each category that has any. Requests to the upstream take from the lanes in turn, so a
// noisy category delays the others by its share at most, and frames of many callers share a request. A lane is in one request at a
// time: the order of a category is kept, and categories do not wait for each other.
//
// Callers of ACK_LEVEL_NONE are answered when their frames are in the queue; all others go the same way and are answered with what
// the upstream says. There is no disk buffer: frames are lost with the process, and ACK_LEVEL_SPOOLED is answered when
// committed.
//
// # Failures
//
// What the upstream does not take for the moment stays at the front of its lane and is sent again, with jittered pauses: for all
// lanes while the upstream is away, for one lane when it refuses that category. What it refuses for good is an error for the caller
// who waits, and a drop with a reason, counted and logged, when nobody does. A request refused as a whole is taken apart to find the
// entry that is the cause.
//
// # Memory
//
// Frames are charged from when they are accepted until they have an outcome. A category may hold a multiple of the memory that is
// free ([Config.Share]): one alone gets most of it, and those that come later find room. What does not fit is refused before it is
// copied, with REASON_OVERLOADED and a hint.
//
// accepted = forwarded + failed + dropped + buffered, for frames, bytes and messages, in every scrape of the metrics.
package scribed
