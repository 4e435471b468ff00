// Package scribev1 is the protocol between Scribe's processes and clients: generated code, and what is asked of its messages in several places.
package scribev1

// OneLog reports whether each logical shard of a category has one log, that of writer slot 0: with exactly_once because sequences are
// checked in it, with a bound one because its order is the readers'.
func (x *Category) OneLog() bool {
	return x.GetDelivery() == Delivery_DELIVERY_EXACTLY_ONCE || x.GetRepeatable() == Repeatability_REPEATABILITY_BOUND
}

// HasOneOrder reports whether all streams of a category send what they send in the same order.
func (x *Category) HasOneOrder() bool {
	return x.GetRepeatable() == Repeatability_REPEATABILITY_BOUND || x.IsSequenced()
}

// IsSequenced reports whether streams of a category read its sequenced log.
func (x *Category) IsSequenced() bool {
	return x.GetRepeatable() == Repeatability_REPEATABILITY_SEQUENCED
}
