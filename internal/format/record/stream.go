package record

// Stream is a producer's messages of one category and logical shard.
type Stream struct {
	Category string
	Shard    uint32
	Producer uint64
}

// Stream returns the stream of a frame with sequences.
func (h *Header) Stream() Stream {
	return Stream{Category: h.CategoryName(), Shard: h.Shard, Producer: h.Producer}
}
