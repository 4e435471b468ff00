package writeproxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/role/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Write implements rpc.WriteService. It returns when every frame has reached the requested acknowledgement level or has failed; a
// failed frame does not fail the others. With ACK_LEVEL_NONE it returns when batchers have the frames in memory, with all other
// levels when the frames are committed. It returns an error if the whole request is refused: because it is too large, for lack of
// memory (with a retry hint), for bytes that are not frames, or because the proxy is closed. The request's bytes are not used
// after it returns.
func (p *Proxy) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	results, ordered, err := p.writeFrames(ctx, req)
	if err != nil {
		return nil, err
	}
	return &scribev1.WriteResponse{Results: results, Ordered: ordered}, nil
}

// writeFrames returns a result for each frame. ordered reports that the batchers heed WriteRequest.follows.
func (p *Proxy) writeFrames(ctx context.Context, req *scribev1.WriteRequest) (results []*scribev1.FrameResult, ordered bool, err error) {
	data, ack := req.GetFrames(), req.GetAck()
	defer func() {
		if err != nil {
			p.metrics.refused.WithLabelValues(rpc.ReasonLabel(rpc.ReasonOf(err))).Inc()
		}
	}()
	ctx, end, err := p.beginCall(ctx)
	if err != nil {
		return nil, false, err
	}
	defer end()
	if int64(len(data)) > p.cfg.MaxRequestBytes {
		return nil, false, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the request has %d bytes of frames, the limit is %d: send less at once", len(data), p.cfg.MaxRequestBytes)
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
		return nil, false, err
	}
	items, err := p.splitRequest(ctx, req, charge)
	if err != nil {
		return nil, false, err
	}
	placed, err := p.placeFrames(items, charge)
	if err != nil {
		return nil, false, err
	}
	if placed != nil {
		if len(req.GetFollows()) > 0 {
			return nil, false, rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "messages of the request have to be placed in shards first: send one request at a time")
		}
		data = placed.data
		if items, err = p.splitRequest(ctx, &scribev1.WriteRequest{Frames: data, Ack: ack}, charge); err != nil {
			return nil, false, err
		}
		refuseMisplaced(items, p.cfg.RetryBase)
	}
	p.retries.Earn()
	start := time.Now()
	p.ledger.countReceived(items)
	if ack != scribev1.AckLevel_ACK_LEVEL_NONE {
		// A write proxy has no spool, so spooled becomes committed, which is stronger.
		ack = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	}
	p.shedItems(items)
	c := &writeCall{p: p, ack: ack, lingered: req.GetLingered(), whole: data}
	c.sendItems(ctx, items)
	for i := range items {
		items[i].concludeResult()
	}
	p.ledger.countAnswered(items)
	p.countTraffic(items)
	p.metrics.seconds.WithLabelValues(scribev1.EnumName(ack)).Observe(time.Since(start).Seconds())
	if placed != nil {
		return placed.foldResults(items), false, nil // the next request would follow frames that are others now
	}
	results = make([]*scribev1.FrameResult, len(items))
	for i := range items {
		results[i] = items[i].result
	}
	// What follows a frame that was sampled out finds no predecessor.
	sampled := slices.ContainsFunc(items, func(it frameItem) bool { return it.leftOut })
	return results, c.ordered.Load() && !c.unordered.Load() && !sampled, nil
}

// refuseMisplaced refuses frames whose category got another layout while the request was placed.
func refuseMisplaced(items []frameItem, after time.Duration) {
	for i := range items {
		if it := &items[i]; it.misplaced && !it.done {
			it.refuseWith(rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, after, "category %s was changed while the request was read: send the frames again", it.category.GetName()))
		}
	}
}

// writeCall is the state of one request.
type writeCall struct {
	p   *Proxy
	ack scribev1.AckLevel
	// lingered: see WriteRequest.lingered.
	lingered bool
	// whole is the request's bytes. Adjacent frames for one batcher are sent from it without a copy.
	whole []byte
	// held: the request's bytes are charged to the memory of throttled requests.
	held bool
	// ordered: a batcher has answered that heeds SubmitRequest.follows; unordered: one that does not.
	ordered, unordered atomic.Bool
}

// sendItems sends the items that are not done and sets their results. Items that wait for a quota delay only the answer.
func (c *writeCall) sendItems(ctx context.Context, items []frameItem) {
	now, waiting := c.applyQuotas(ctx, items)
	var group sync.WaitGroup
	for _, g := range waiting {
		group.Go(func() { c.awaitQuotas(ctx, g) })
	}
	c.deliverItems(ctx, now)
	group.Wait()
}

// concludeResult turns a definite failure into an unknown outcome if an earlier attempt may have stored the frame.
func (it *frameItem) concludeResult() {
	if info := it.result.GetError(); info != nil && it.unsure {
		it.result = &scribev1.FrameResult{Error: request.AsUnknown(info)}
	}
}

// errNoResult is a bug: an item was left without a result.
var errNoResult = errors.New("writeproxy: a frame was not sent")
