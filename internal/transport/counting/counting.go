// Package counting sends what a [delivery.Ledger] has counted to the cell, as rows of the category _delivery (docs/format/delivery.md). The libraries
// of producers and consumers report by a [Reporter]; the agent, which keeps its ledger with its queue, by [Send].
package counting

import (
	"context"
	"errors"
	"sync"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Service takes rows, as rpc.WriteService does.
type Service interface {
	Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error)
}

// Sender says how rows are sent.
type Sender struct {
	Service Service
	// Timeout bounds a request.
	Timeout time.Duration
	// Renews says that a token which proves nothing any more will be replaced: such a refusal is waited out.
	Renews bool
	// Settle is told the outcomes of each request: see [delivery.Ledger.Settle]. Refused is called for frames that are refused for good; it may be nil.
	Settle  func(map[*delivery.Pending]bool)
	Refused func(*delivery.Pending, error)
}

// maxRequest bounds the rows of one request in bytes.
const maxRequest = 1 << 20

// Send sends frames in their order, at a level, and returns false if some have to be sent again. It stops at the first request of which that is so: while the
// cell is unavailable one request asks whether it still is.
func (s *Sender) Send(ctx context.Context, frames []*delivery.Pending, ack scribev1.AckLevel) bool {
	for len(frames) > 0 {
		if ctx.Err() != nil {
			return false
		}
		n, size := 1, len(frames[0].Frame)
		for n < len(frames) && size+len(frames[n].Frame) <= maxRequest {
			size += len(frames[n].Frame)
			n++
		}
		if !s.sendRequest(ctx, frames[:n], size, ack) {
			return false
		}
		frames = frames[n:]
	}
	return true
}

func (s *Sender) sendRequest(ctx context.Context, frames []*delivery.Pending, size int, ack scribev1.AckLevel) bool {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	body := make([]byte, 0, size)
	for _, p := range frames {
		body = append(body, p.Frame...)
	}
	res, err := s.Service.Write(ctx, &scribev1.WriteRequest{Frames: body, Ack: ack})
	if err == nil && len(res.GetResults()) != len(frames) {
		err = errors.New("the server did not answer for every frame")
	}
	done := make(map[*delivery.Pending]bool, len(frames))
	for i, p := range frames {
		ferr := err
		if err == nil {
			ferr = rpc.FromInfo(res.GetResults()[i].GetError())
		}
		switch {
		case ferr == nil:
			done[p] = true
		case retry.Retryable(ferr), rpc.ReasonOf(ferr) == scribev1.Reason_REASON_UNSPECIFIED, s.Renews && retry.IsLapsed(ferr):
		default:
			done[p] = false // for example, the cell keeps no such category
			if s.Refused != nil {
				s.Refused(p, ferr)
			}
		}
	}
	s.Settle(done)
	return len(done) == len(frames)
}

// Reporter counts, and reports at intervals. A nil Reporter does nothing. It is safe for concurrent use.
type Reporter struct {
	every  time.Duration
	now    func() time.Time
	sender Sender
	// sending is held while rows are sent: their order is that in which they were made.
	sending sync.Mutex

	mu struct {
		sync.Mutex
		ledger *delivery.Ledger
	}
}

// NewReporter returns a reporter of what a ledger counts. sender.Settle is set.
func NewReporter(ledger *delivery.Ledger, every time.Duration, now func() time.Time, sender Sender) *Reporter {
	r := &Reporter{every: every, now: now, sender: sender}
	r.mu.ledger = ledger
	r.sender.Settle = func(done map[*delivery.Pending]bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.mu.ledger.Settle(done)
	}
	return r
}

// Add adds to what is counted. It takes no other lock.
func (r *Reporter) Add(key delivery.Key, c delivery.Counts) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ledger.Add(key, c)
}

// Run reports at each interval until ctx ends. It does not wait then for what is being sent.
func (r *Reporter) Run(ctx context.Context) {
	t := time.NewTicker(r.every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			r.reportOnce(ctx, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
		case <-ctx.Done():
			return
		}
	}
}

// reportOnce sends the pending rows, and makes them if there are none; it returns false unless all are settled.
func (r *Reporter) reportOnce(ctx context.Context, ack scribev1.AckLevel) bool {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	frames := r.mu.ledger.Reports(r.now(), nil)
	r.mu.Unlock()
	return r.sender.Send(ctx, frames, ack)
}

// ReportRest sends everything that was counted, until nobody takes it or ctx ends. An agent with a disk buffer takes it while the cell is away.
func (r *Reporter) ReportRest(ctx context.Context) {
	if r == nil {
		return
	}
	for idle := false; !idle && ctx.Err() == nil; {
		if !r.reportOnce(ctx, scribev1.AckLevel_ACK_LEVEL_SPOOLED) {
			return
		}
		r.mu.Lock()
		idle = r.mu.ledger.Idle()
		r.mu.Unlock()
	}
}
