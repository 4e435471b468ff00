package writeproxy

import "scribe/internal/base/inflight"

// producerFlights knows which micro-shard the frames go to that producers have in flight, so that those which follow them go there
// too: two batchers know nothing of each other's order.
type producerFlights struct {
	micros inflight.Places[flightOwner, int]
}

// flightOwner is a producer in a logical shard.
type flightOwner struct{ key, producer uint64 }

// microOf returns the micro-shard of frames in flight which one of the items follows.
func (f *producerFlights) microOf(items []*frameItem) (micro int, known bool) {
	for _, it := range items {
		if !it.follows {
			continue
		}
		if micro, known = f.micros.Find(flightOwner{it.key, it.producer}); known {
			return micro, true
		}
	}
	return 0, false
}

// begin notes where the items of a request go, until end is called.
func (f *producerFlights) begin(items []*frameItem) (end func()) {
	var owners []flightOwner
	for _, it := range items {
		o := flightOwner{it.key, it.producer}
		if !it.sequenced || len(owners) > 0 && owners[len(owners)-1] == o {
			continue
		}
		owners = append(owners, o)
		f.micros.Begin(o, it.micro)
	}
	return func() {
		for _, o := range owners {
			f.micros.End(o)
		}
	}
}
