// Package bucket divides the pointers of a category among the members of a consumer group. Each pointer is in one of a fixed number
// of buckets, which follows from its place alone: the read stream leaves out what is in others' buckets, the member checks that it was
// given all that is in its own, and the coordinator writes down how far each bucket has come, without anybody telling the others.
// docs/format/group.md is the reference; what a [Scheme] says of a place is never changed, since positions rest on it.
//
// # Sharing
//
// With [Pointers] the pointers of every physical shard are spread over all buckets: of B successive ones, beginning at a multiple of
// B, each bucket has exactly one, in an order that changes from one B to the next and from shard to shard. So the buckets get the same
// share of every shard, whatever the rhythm of its writer, and one shard keeps all members busy. Where the pointers of a bucket are can
// be computed both ways: [Scheme.Of], [Scheme.Next].
//
// With [Shards] a bucket has whole logical shards, so that what was written to one, a key's messages for example, is read by one
// member at a time and in order.
//
// # Places
//
// A bucket's [Place] in a shard is where its next message is. A [Position] is the places of many buckets in one shard in little room:
// a place that all have reached, and those buckets that are ahead of it. It is canonical: buckets that are behind no pointer of theirs
// are not ahead.
package bucket
