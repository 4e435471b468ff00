package discovery

import (
	"context"
	"slices"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// streamOf returns the stream of the first frame of a request, or the zero value if it has none.
func streamOf(frames []byte) record.Stream {
	h, err := record.ParseHeader(frames)
	if err != nil || !h.Sequenced() {
		return record.Stream{}
	}
	return h.Stream()
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
	write := func(in roleInstance) (*scribev1.WriteResponse, error) {
		if stream != (record.Stream{}) {
			s.c.writers.Begin(stream, in)
			defer s.c.writers.End(stream)
		}
		res, err := call(clientOf(s.c, in, rpc.NewWriteClient))
		if err == nil {
			s.c.mu.Lock()
			s.c.mu.ordered[in] = res.GetOrdered()
			s.c.mu.Unlock()
		}
		return res, err
	}
	res, err := tryChosen(ctx, s.c, isRefused, ch, write)
	if len(req.GetFollows()) > 0 {
		return res, err
	}
	if others := s.c.chooseOthers(ctx, ch, err, writers); len(others.urls) > 0 {
		return tryChosen(ctx, s.c, isRefused, others, write)
	}
	return res, err
}

// chooseOrdered returns the one instance for a request that follows others in flight, or none: that which has what is in flight of its
// first stream, if any, else the best one that keeps the order.
func (c *Cell) chooseOrdered(stream record.Stream, ch instanceChoice) []string {
	if at, ok := c.writers.Find(stream); ok && at.role == ch.role {
		if i := slices.Index(ch.urls, at.url); i > 0 {
			ch.urls[0], ch.urls[i] = ch.urls[i], ch.urls[0]
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, url := range ch.urls {
		if c.mu.ordered[roleInstance{ch.role, url}] {
			return ch.urls[i : i+1]
		}
	}
	return nil
}
