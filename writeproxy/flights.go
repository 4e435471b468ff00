package writeproxy

import "sync"

// producerFlights knows which micro-shard the frames go to that producers have in flight, so that those which follow them go there
// too: two batchers know nothing of each other's order.
type producerFlights struct {
	mu      sync.Mutex
	byOwner map[flightOwner]producerFlight
}

// flightOwner is a producer in a logical shard.
type flightOwner struct{ key, producer uint64 }

type producerFlight struct {
	micro    int
	requests int // in flight
}

// microOf returns the micro-shard of frames in flight which one of the items follows.
func (f *producerFlights) microOf(items []*frameItem) (micro int, known bool) {
	for _, it := range items {
		if !it.follows {
			continue
		}
		f.mu.Lock()
		flight, ok := f.byOwner[flightOwner{it.key, it.producer}]
		f.mu.Unlock()
		if ok {
			return flight.micro, true
		}
	}
	return 0, false
}

// begin notes where the items of a request go, until end is called.
func (f *producerFlights) begin(items []*frameItem) (end func()) {
	var owners []flightOwner
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byOwner == nil {
		f.byOwner = make(map[flightOwner]producerFlight)
	}
	for _, it := range items {
		o := flightOwner{it.key, it.producer}
		if !it.sequenced || len(owners) > 0 && owners[len(owners)-1] == o {
			continue
		}
		owners = append(owners, o)
		f.byOwner[o] = producerFlight{micro: it.micro, requests: f.byOwner[o].requests + 1}
	}
	return func() { f.end(owners) }
}

func (f *producerFlights) end(owners []flightOwner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range owners {
		flight := f.byOwner[o]
		if flight.requests--; flight.requests == 0 {
			delete(f.byOwner, o)
		} else {
			f.byOwner[o] = flight
		}
	}
}
