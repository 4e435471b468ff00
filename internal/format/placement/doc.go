// Package placement says in which logical shard of a category a message belongs. A [Layout] is a rule and a number of shards: the
// hash of the message's key, or of a field of its content, falls into one of as many equal ranges. docs/format/placement.md
// describes it, with test vectors.
//
// Who places messages marks their frames with the [Layout.Tag], so that servers can tell frames whose shard follows from a layout.
// Readers that look for one value read the shards that any layout of the category's history gives it.
package placement
