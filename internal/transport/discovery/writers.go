package discovery

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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

// isForAgent reports whether an agent answers for itself at a level, before its upstream does.
func isForAgent(level scribev1.AckLevel) bool {
	return level == scribev1.AckLevel_ACK_LEVEL_NONE || level == scribev1.AckLevel_ACK_LEVEL_SPOOLED
}

// chooseWriters returns the instances for a write. What an agent answers for by itself stays with the agent at the given address, also
// while that stops or is away: it may hold what goes before, which another host's agent would overtake.
func (c *Cell) chooseWriters(ctx context.Context, level scribev1.AckLevel) (instanceChoice, error) {
	ch, err := c.chooseInstances(ctx, nil, writers...)
	if !isForAgent(level) {
		return ch, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if agent := c.mu.view.agent; agent != "" {
		return instanceChoice{scribev1.Role_ROLE_SCRIBED, []string{agent}}, nil
	}
	return ch, err
}

// rolesBeside returns the roles of those that may take a write over when the chosen instances stop; none for what stays with its agent.
func rolesBeside(ch instanceChoice, level scribev1.AckLevel) []scribev1.Role {
	if isForAgent(level) && ch.role == scribev1.Role_ROLE_SCRIBED {
		return nil
	}
	return writers
}

// ackRequest is a request that waits for an acknowledgement.
type ackRequest interface {
	proto.Message
	GetAck() scribev1.AckLevel
}

// requestFor returns the request as it goes to an instance. A write proxy answers for spooled frames when they are committed; the process that
// has it may have an agent, too, which is another host's and would take them into its own spool.
func requestFor[R ackRequest](c *Cell, in roleInstance, req R) R {
	if in.role != scribev1.Role_ROLE_WRITEPROXY || req.GetAck() != scribev1.AckLevel_ACK_LEVEL_SPOOLED || c.given == nil || slices.Contains(c.given.Order(), in.url) {
		return req
	}
	from := req.ProtoReflect()
	to := from.New() // it shares the frames
	from.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(f, v)
		return true
	})
	to.Set(to.Descriptor().Fields().ByName("ack"), protoreflect.ValueOfEnum(scribev1.AckLevel_ACK_LEVEL_COMMITTED.Number()))
	return to.Interface().(R)
}

// tryWrite is try for a request that begins with a frame. One that follows others in flight goes where they went, or nowhere: a write
// proxy knows only of its own requests which batcher they went to, and an instance that has not said that it keeps their order may not.
func (s writeService) tryWrite(
	ctx context.Context, req *scribev1.WriteRequest, first []byte, call func(rpc.WriteService, *scribev1.WriteRequest) (*scribev1.WriteResponse, error),
) (*scribev1.WriteResponse, error) {
	ch, err := s.c.chooseWriters(ctx, req.GetAck())
	if err != nil {
		return nil, err
	}
	stream, others := streamOf(first), rolesBeside(ch, req.GetAck())
	if len(req.GetFollows()) > 0 {
		others = nil
		if ch.urls = s.c.chooseOrdered(stream, ch); len(ch.urls) == 0 {
			return nil, rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "no server is known to keep the order of several requests: send one at a time")
		}
	}
	write := func(in roleInstance) (*scribev1.WriteResponse, error) {
		if stream != (record.Stream{}) {
			s.c.writers.Begin(stream, in)
			defer s.c.writers.End(stream)
		}
		res, err := call(clientOf(s.c, in, rpc.NewWriteClient), requestFor(s.c, in, req))
		if err == nil {
			s.c.mu.Lock()
			s.c.mu.ordered[in] = res.GetOrdered()
			s.c.mu.Unlock()
		}
		return res, err
	}
	return tryFrom(ctx, s.c, isRefused, ch, others, write)
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
