package scribed

import "math"

// severalTags stands for more than one: no frame has it. No library sends a call that mixes a producer's layouts.
const severalTags = math.MaxUint32

// joinTags returns the tag of frames that have two.
func joinTags(a, b uint32) uint32 {
	if a != b {
		return severalTags
	}
	return a
}

// layoutTags says by how many layouts frames were placed.
type layoutTags struct {
	tag          uint32 // the newest
	any, several bool
}

func (t *layoutTags) addTag(tag uint32) {
	t.several = t.several || t.any && tag != t.tag
	t.tag, t.any = tag, true
}

// layoutCheck finds out which frames wait for others of their producer that another layout placed.
//
// When a category gets more shards, a key may move to another one. Its producer sends what it placed by the new layout when it has the
// outcomes of the rest. From an agent these may say no more than that it has the frames, in memory or in the spool. The upstream keeps no order
// of several shards, nor does it in one request. So a frame waits while others of its producer with another tag are in flight,
// or before it in the request. What the queue has after it waits with it, and the backlog comes first anyway: see isOrdered.
//
// Usually all frames have one tag, and each costs a comparison.
type layoutCheck struct {
	flights *categoryFlights
	layouts layoutTags
	// tags are those of producers in flight and in the request; nil while there is one for all.
	tags map[uint64]uint32
}

func (c *categoryFlights) newLayoutCheck() layoutCheck {
	k := layoutCheck{flights: c}
	for _, fl := range c.flights {
		if fl.layouts.any {
			k.layouts.addTag(fl.layouts.tag)
			k.layouts.several = k.layouts.several || fl.layouts.several
		}
	}
	return k
}

// mayJoin reports whether a frame may join the request, after the entries that have, and the frames before it.
func (k *layoutCheck) mayJoin(joined []*queueEntry, frames []queuedFrame, i int) bool {
	f := &frames[i]
	if !f.sequenced {
		return true
	}
	if k.tags == nil {
		if k.layouts.addTag(f.sequences.placement); !k.layouts.several {
			return true
		}
		k.collectTags(joined, frames[:i])
	}
	producer := f.sequences.stream.producer
	tag, ok := k.tags[producer]
	if ok && tag != f.sequences.placement {
		return false
	}
	k.tags[producer] = f.sequences.placement
	return true
}

// collectTags collects the tags of producers: of those in flight, and of those in the request so far.
func (k *layoutCheck) collectTags(joined []*queueEntry, frames []queuedFrame) {
	k.tags = make(map[uint64]uint32)
	for stream, end := range k.flights.ends {
		k.joinTag(stream.producer, end.placement)
	}
	for _, e := range joined {
		k.addTags(e.frames)
	}
	k.addTags(frames)
}

func (k *layoutCheck) addTags(frames []queuedFrame) {
	for i := range frames {
		if s := &frames[i].sequences; frames[i].sequenced {
			k.joinTag(s.stream.producer, s.placement)
		}
	}
}

func (k *layoutCheck) joinTag(producer uint64, tag uint32) {
	if other, ok := k.tags[producer]; ok {
		tag = joinTags(other, tag)
	}
	k.tags[producer] = tag
}
