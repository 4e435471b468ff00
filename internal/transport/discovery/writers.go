package discovery

import (
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// writeStream is a producer in a logical shard.
type writeStream struct {
	category string
	shard    uint32
	producer uint64
}

// writeFlight is what is in flight of a stream, all at one instance if it can be.
type writeFlight struct {
	at       roleInstance
	requests int
}

// streamOf returns the stream of the first frame of a request, or the zero value if it has none.
func streamOf(frames []byte) writeStream {
	h, err := record.ParseHeader(frames)
	if err != nil || !h.Sequenced() {
		return writeStream{}
	}
	return writeStream{h.CategoryName(), h.Shard, h.Producer}
}

// tryWrite is try for a request that begins with a frame. One that follows others in flight goes where they went, or nowhere: a write
// proxy knows only of its own requests which batcher they went to, and an instance that has not said that it keeps their order may not.
func (s writeService) tryWrite(
	ctx context.Context, req *scribev1.WriteRequest, first []byte, call func(rpc.WriteService) (*scribev1.WriteResponse, error),
) (*scribev1.WriteResponse, error) {
	ch, err := s.c.chooseInstances(ctx, nil, writers...)
	if err != nil {
		return nil, err
	}
	stream := streamOf(first)
	if len(req.GetFollows()) > 0 {
		if ch.urls = s.c.chooseOrdered(stream, ch); len(ch.urls) == 0 {
			return nil, rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "no server is known to keep the order of several requests: send one at a time")
		}
	}
	return tryChosen(ctx, s.c, isRefused, ch, func(in roleInstance) (*scribev1.WriteResponse, error) {
		defer s.c.beginWrite(stream, in)()
		res, err := call(clientOf(s.c, in, rpc.NewWriteClient))
		if err == nil {
			s.c.mu.Lock()
			s.c.mu.ordered[in] = res.GetOrdered()
			s.c.mu.Unlock()
		}
		return res, err
	})
}

// chooseOrdered returns the one instance for a request that follows others in flight, or none: that which has what is in flight of its
// first stream, if any, else the best one that keeps the order.
func (c *Cell) chooseOrdered(stream writeStream, ch instanceChoice) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if flight, ok := c.mu.writers[stream]; ok && flight.at.role == ch.role {
		if i := slices.Index(ch.urls, flight.at.url); i > 0 {
			ch.urls[0], ch.urls[i] = ch.urls[i], ch.urls[0]
		}
	}
	for i, url := range ch.urls {
		if c.mu.ordered[roleInstance{ch.role, url}] {
			return ch.urls[i : i+1]
		}
	}
	return nil
}

// beginWrite notes where a request goes, until end is called.
func (c *Cell) beginWrite(stream writeStream, at roleInstance) (end func()) {
	if stream == (writeStream{}) {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.writers[stream] = writeFlight{at, c.mu.writers[stream].requests + 1}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		flight := c.mu.writers[stream]
		if flight.requests--; flight.requests == 0 {
			delete(c.mu.writers, stream)
			return
		}
		c.mu.writers[stream] = flight
	}
}
