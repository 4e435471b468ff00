// Package writeproxy is the role that admits writes to a cell and sends each frame to a batcher. Start with [Proxy.Write]: it splits a
// request into items, applies quotas, sends the items to batchers, and collects their results.
//
// # Admission and quotas
//
// [Proxy.Admit] refuses a request by its announced length, before its body is read. Write reads the header of every frame and
// finds its category; quotas come next, and only what is left has its bodies checked. A frame that is refused individually does
// not fail the others.
//
// A category's quota is divided evenly among the live write proxies. Frames beyond it are blocked (refused, with a retry hint), throttled
// (they wait, within three quarters of the request's remaining time and a share of the memory), or sampled (one in N is kept, and carries
// N as its sample rate). exactly_once categories block instead of being sampled.
//
// # Routing
//
// Every (category, logical shard) has its own order of the batchers, by rendezvous hashing with weights. Its frames go to the
// first one, so that a batcher gets much traffic of few shards; correctness does not depend on it. A shard with too much traffic
// for one batcher is divided into micro-shards, one for each of the first batchers of the order. Categories with one log for each
// logical shard are never divided. A batcher's weight falls when it is full or slow. An unavailable batcher gets only probes
// until it answers.
//
// # Failures
//
// Frames that a batcher refuses are sent to it again, or at once to a fallback if the batcher is unavailable. Retries are bounded
// for each request, by its deadline, and over all requests, by a budget that requests fill. best_effort frames are never retried.
// Frames with an unknown outcome are not retried if their category is exactly_once and they have no sequence. Frames of one shard
// keep their order: they are sent to one batcher at a time, and retries go before later frames.
//
// In every scrape of the metrics, received = acknowledged + failed + dropped (sampled) + in flight, for frames, bytes and messages.
//
// # Locks
//
// Quotas and traffic are divided into stripes of which a request uses one. batcherFleet.mu is taken before a member's
// lock; all others are leaves, and none is held during I/O. DESIGN.md has the reasons.
package writeproxy
