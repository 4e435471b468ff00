// Package admission decides which requests a busy role accepts: the decisions of read proxies, write proxies and read streams without their I/O.
//
//   - A [Queue] bounds the requests queued or in service. Each has a cost in bytes, and waits for it in order of arrival. If the queue is
//     full, a request is refused at once, which is cheap, so that its sender goes elsewhere.
//   - A [LengthController] sets that length from the host's utilisation: a proportional-integral-derivative controller that keeps the
//     utilisation near a target. A fixed length would be too short for a host whose requests wait for a slow store, and too long for
//     one whose processors are the bottleneck.
//   - A [TokenBucket] is a token bucket. It allows bursts up to its size, and tells each refused caller another time to come back:
//     a herd that is told "in 200 ms" is the same herd 200 ms later.
//   - A [LoadMeter] measures the utilisation: the process's CPU time against the processors it may use, and the bytes that it sends
//     against the capacity of its network; the greater of the two.
//   - A [Gate] bounds what a role has in progress where a store or an engine behind it is the bottleneck, not the processors: by how long requests
//     take. It has a bucket and a controller, and lets lower priorities give way.
//
// None of them starts a goroutine: the requests update them.
package admission
