// Package writeproxy is the role that admits writes to a cell and sends each frame to a batcher.
//
// # Admission
//
// [Proxy.Admit] refuses a request by its announced length, before its body is read. Write then checks every frame (header and
// body checksum; no message is looked at), its category, its logical shard, and what can be told of its messages' sizes. A frame
// that is refused alone does not fail the others. A category that does not exist is created if that is configured.
//
// # Routing
//
// A frame goes to the batcher with the highest rendezvous weight for (category, logical shard, micro-shard), so that a batcher gets
// much of few shards; correctness does not depend on it. The frames of a request are divided by batcher and sent in parallel; those
// that are neighbours in the request are sent from there without a copy. Results come back in the order of the request.
//
// # Failures
//
// What a batcher does not take is sent to it again, a few times and with jittered pauses, or at once elsewhere if it is not there;
// then to one of a few fallbacks, chosen by a salted hash. Attempts beyond the first are bounded per request, by the request's
// deadline, and over all requests by a budget that requests fill. Only frames that may be repeated are: best_effort ones never,
// and one whose outcome is unknown not if its category is exactly_once and it carries no sequence. A deadline that is passed on is
// a little shorter than the caller's, so that the answer is back in time.
//
// received = acknowledged + failed + in flight, for frames, bytes and messages, in every scrape of the metrics.
package writeproxy
