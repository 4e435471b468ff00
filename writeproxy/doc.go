// Package writeproxy is the role that admits writes to a cell and sends each frame to a batcher.
//
// # Admission
//
// [Proxy.Admit] refuses a request by its announced length, before its body is read; the hint follows how fast memory was given back
// lately (package budget). Write then reads the header of every frame: its category, found in the watched copy, and its logical
// shard. Quotas come next, and only what is left of a request has its bodies looked at (checksum, and what can be told of its
// messages' sizes; no message is decoded). A frame that is refused alone does not fail the others. A category that does not exist is
// created if that is configured.
//
// # Quotas
//
// A category's quota is divided evenly among the live write proxies. Each one's share is a token bucket that goes into debt: a
// frame passes while there is anything in it and is charged in full, so that no frame is too large to pass, and what passes in the
// long run is the quota. What does not pass is, as the category says,
//
//   - blocked: refused with REASON_OVERLOADED and the time when the bucket has paid its debt;
//   - throttled: it waits in the category's line, within three quarters of the request's remaining time and a share of the memory,
//     of which one category never takes all. Other categories' frames of the request are sent meanwhile, other requests are not
//     held, and no batcher is: only the answer waits;
//   - sampled: one frame in N is kept and carries N, multiplied with the rate it had, as its sample rate; the others are answered
//     with sampled_out, and counted. N follows how much is offered. exactly_once categories block instead.
//
// # Routing
//
// Every (category, logical shard) has its own order of the batchers, by rendezvous hashing with weights. Its frames go to the first
// one, so that a batcher gets much of few shards; correctness does not depend on it. A shard with more traffic than one batcher
// should have is divided into micro-shards, one for each of the first batchers of the order, which take turns in runs of about a
// megabyte; the frames of one shard in one request stay together. Categories with one log for each logical shard (exactly_once, repeatable) are never divided.
//
// A batcher's weight falls when it says that it is full (in its answers at once, in the membership for those not spoken to), and when
// it takes much longer than the others to commit. It changes in steps and with slack, so that little moves. A batcher that is not
// there, or answers nothing for a while although it is asked, is left alone and probed with empty requests until it answers.
//
// The frames of a request are divided by batcher and sent in parallel; those that are neighbours in the request are sent from there
// without a copy. Results come back in the order of the request.
//
// # Failures
//
// What a batcher does not take is sent to it again, a few times and with jittered pauses, or at once elsewhere if it is not there or
// does not answer in its part of the time; then to one of a few fallbacks, chosen by a salted hash. Attempts beyond the first are
// bounded per request, by the request's deadline, and over all requests by a budget that requests fill. Only frames that may be
// repeated are: best_effort ones never, and one whose outcome is unknown not if its category is exactly_once and it carries no
// sequence. Frames of one shard keep their order: they are in one place at a time, and those that are left are sent again in their
// order before anything that follows them. When a batcher says that a category's logs are sealed, the category is asked for again,
// since it may have been deleted and created anew, and the frame is sent once more, together with what follows it. The frames of an
// exactly_once category in one request are of one category, whatever the view learns meanwhile.
//
// A deadline that is passed on is a little shorter than the caller's, so that the answer is back in time.
//
// # Accounts
//
// received = acknowledged + failed + dropped (sampled) + in flight, for frames, bytes and messages, in every scrape of the metrics.
//
// # Locks
//
// What every request touches is divided: counters into stripes of which a request uses one, quotas and traffic into stripes by
// category and shard, conditions of batchers by batcher. fleet.mu is taken before a member's lock; all others are leaves, and none is
// held across I/O. DESIGN.md says why things are as they are.
package writeproxy
