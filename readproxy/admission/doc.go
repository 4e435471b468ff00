// Package admission decides which requests a busy host takes: the decisions of the read proxy without its I/O.
//
//   - A [Queue] bounds the requests queued or in service. Each has a cost in bytes, and waits for it in order of arrival. If the queue is
//     full, a request is refused at once, which is cheap, so that its sender goes elsewhere.
//   - A [Controller] sets that length, from how busy the host is: a proportional-integral-derivative controller that keeps the
//     utilisation near a target. A fixed length would be too short for a host whose requests wait for a slow store, and too long for
//     one whose processors are the bottleneck.
//   - A [Bucket] is a token bucket. It lets bursts through up to its size, and tells those that it refuses when to come back, each at
//     a time of its own: a herd that is told "in 200 ms" is the same herd 200 ms later.
//   - A [Meter] measures the utilisation: the process's CPU time against the processors it may use, and the bytes that it sends
//     against what its network takes; the greater of the two.
//
// None of them starts a goroutine: they are brought up to date by the requests that come.
package admission
