package writeproxy

import (
	"context"

	"scribe/internal/format/record"
	"scribe/internal/role/publish"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Publish implements rpc.WriteService: it encodes the messages into one frame, which is divided if the
// category places messages by themselves, and processes it as Write does.
func (p *Proxy) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	frame, err := p.encodeFrame(ctx, req)
	if err != nil {
		p.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		return nil, err
	}
	results, _, err := p.writeFrames(ctx, &scribev1.WriteRequest{Frames: frame, Ack: req.GetAck()})
	if err != nil {
		return nil, err
	}
	return publish.Response(req, results[0])
}

func (p *Proxy) encodeFrame(ctx context.Context, req *scribev1.PublishRequest) ([]byte, error) {
	if err := record.ValidateCategory(req.GetCategory()); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "category: %w", err)
	}
	c, ok := p.deps.Categories.Lookup(req.GetCategory())
	if !ok {
		var err error
		if c, err = p.resolveOrCreate(ctx, req.GetCategory()); err != nil {
			return nil, err
		}
	}
	return publish.Frame(req, maxMessage(c), p.deps.Clock())
}
