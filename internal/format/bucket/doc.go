// Package bucket divides the pointers of a category among the members of a consumer group. Each pointer is in one of a fixed
// number of buckets, which depends only on its shard and LSN. Therefore the read stream can skip the pointers of other buckets,
// the member can check that it got all pointers of its own, and the coordinator can store the position of each bucket, without
// further communication. docs/format/group.md is the reference. The buckets that a [Scheme] computes never change, since stored
// positions depend on them.
//
// # Sharing
//
// With [Pointers] the pointers of every physical shard are spread over all buckets: of B consecutive ones, beginning at a
// multiple of B, each bucket has exactly one, in an order that changes from one B to the next and from shard to shard. So the
// buckets get the same share of every shard, whatever the rhythm of its writer, and one shard keeps all members busy. Pointers
// and buckets can be computed from each other: [Scheme.Of], [Scheme.Next].
//
// With [Shards] a bucket has whole logical shards, so that one member at a time reads the messages of a shard, such as those of a
// key, in order.
//
// # Places
//
// A bucket's [Place] in a shard is the position of its next message. A [Position] is a compact form of the places of many buckets
// in one shard: a place that all have reached, and the buckets that are ahead of it. It is canonical: a bucket that has not
// passed any of its pointers from that place on is not ahead.
package bucket
