package writeproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Write implements rpc.WriteService. It answers when every frame has reached the level that was asked for or has failed; a frame
// that failed does not fail the others. ACK_LEVEL_NONE is answered when the batchers hold the frames in memory, anything else when
// they are committed. What the request as a whole is refused for is an error: too large, no memory (with a hint), bytes that are
// no frames, a proxy that is closed. The request's bytes are not used after it returns.
func (p *Proxy) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	items, err := p.writeFrames(ctx, req.GetFrames(), req.GetAck())
	if err != nil {
		return nil, err
	}
	resp := &scribev1.WriteResponse{Results: make([]*scribev1.FrameResult, len(items))}
	for i := range items {
		resp.Results[i] = items[i].result
	}
	return resp, nil
}

func (p *Proxy) writeFrames(ctx context.Context, data []byte, ack scribev1.AckLevel) (items []frameItem, err error) {
	defer func() {
		if err != nil {
			p.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		}
	}()
	ctx, end, err := p.beginCall(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if int64(len(data)) > p.cfg.MaxRequestBytes {
		return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), p.cfg.MaxRequestBytes)
	}
	charged := int64(0)
	charge := func(n int64) error {
		if err := p.writes.Charge(n); err != nil {
			return err
		}
		charged += n
		return nil
	}
	defer func() { p.writes.Release(charged) }()
	if err := charge(int64(len(data))); err != nil {
		return nil, err
	}
	if items, err = p.splitRequest(ctx, data, charge); err != nil {
		return nil, err
	}
	p.retries.Earn()
	start := time.Now()
	account := p.ledger.pickStripe()
	account.countReceived(items)
	if ack != scribev1.AckLevel_ACK_LEVEL_NONE {
		// Spooled is for a host's disk, which is not here: durable is more than was asked for.
		ack = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	}
	c := &writeCall{p: p, ack: ack, whole: data}
	c.sendItems(ctx, items)
	for i := range items {
		items[i].concludeResult()
	}
	account.countAnswered(items)
	p.metrics.seconds.WithLabelValues(ackLabel(ack)).Observe(time.Since(start).Seconds())
	return items, nil
}

// writeCall is a request on its way.
type writeCall struct {
	p   *Proxy
	ack scribev1.AckLevel
	// whole is the request's bytes: frames that go to one batcher and are neighbours are sent from there.
	whole []byte
	// held: the request's bytes are charged to the memory of those who wait.
	held bool
}

// sendItems sends the items that are not done and sets their results. Those that wait for a quota hold up nothing but the answer.
func (c *writeCall) sendItems(ctx context.Context, items []frameItem) {
	now, waiting := c.applyQuotas(ctx, items)
	var group sync.WaitGroup
	for _, g := range waiting {
		group.Go(func() { c.awaitQuota(ctx, g) })
	}
	c.deliverItems(ctx, now)
	group.Wait()
}

// concludeResult keeps a definite failure from being told of a frame that an earlier attempt may have stored.
func (it *frameItem) concludeResult() {
	if info := it.result.GetError(); info != nil && it.unsure {
		it.result = &scribev1.FrameResult{Error: request.AsUnknown(info)}
	}
}

// errNoResult is a bug: an item was left without a result.
var errNoResult = errors.New("writeproxy: a frame was not sent")
