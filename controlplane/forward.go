package controlplane

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// forwardTimeout bounds forwarded calls whose callers set no deadline.
const forwardTimeout = 10 * time.Second

// forwarder passes calls on to the leader.
type forwarder struct {
	running atomic.Int64

	mu struct {
		sync.Mutex
		// url and leader are the client that was used last: making one costs more than a small call.
		url    string
		leader rpc.ControlService
	}
}

// client returns a client for the leader at a URL.
func (f *forwarder) client(url string, dial func(url string) rpc.ControlService) rpc.ControlService {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.leader == nil || f.mu.url != url {
		f.mu.url, f.mu.leader = url, dial(url)
	}
	return f.mu.leader
}

// serveLeading serves a call that only the leader serves: with here if this instance leads, otherwise by passing it on to the one
// that does. The name of the call is for errors.
func serveLeading[Req, Res any](ctx context.Context, c *ControlPlane, what string, req *Req,
	there func(rpc.ControlService, context.Context, *Req) (*Res, error), here func(context.Context, *heldTerm) (*Res, error),
) (*Res, error) {
	t := c.leadership.currentTerm(time.Now())
	if t == nil {
		return forwardCall(ctx, c, what, req, there)
	}
	res, err := here(ctx, t)
	if err == nil && !c.leadership.leadsIn(t) {
		return nil, c.errDeposed(what)
	}
	return res, err
}

// forwardCall passes a call on, once, with its deadline. The leader's errors are returned as they are.
func forwardCall[Req, Res any](ctx context.Context, c *ControlPlane, what string, req *Req,
	there func(rpc.ControlService, context.Context, *Req) (*Res, error),
) (res *Res, err error) {
	leader, done, err := c.beginForward(ctx, what)
	if err != nil {
		return nil, err
	}
	defer func() { done(err) }()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, forwardTimeout)
		defer cancel()
	}
	return there(leader, rpc.WithForwarded(ctx), req)
}

// beginForward returns the leader for a call that is passed on. The caller calls done with the result.
func (c *ControlPlane) beginForward(ctx context.Context, what string) (leader rpc.ControlService, done func(error), err error) {
	seen, _ := c.leadership.seenTerm()
	switch {
	case rpc.Forwarded(ctx):
		return nil, nil, c.refuse(c.errNoLeader(what, "another control plane has passed the call on, and this one does not lead (any more, or yet)"))
	case seen.isFree():
		return nil, nil, c.refuse(c.errNoLeader(what, "no control plane leads for now"))
	case seen.Holder == c.cfg.Instance:
		return nil, nil, c.refuse(c.errNoLeader(what, "this control plane is not certain to lead for now: its store does not answer, or it has just started"))
	}
	if c.forwarder.running.Add(1) > int64(c.cfg.MaxForwarded) {
		c.forwarder.running.Add(-1)
		return nil, nil, c.refuse(rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second,
			"%s: %d calls are being passed on to the control plane that leads, which is the limit", what, c.cfg.MaxForwarded))
	}
	return c.forwarder.client(seen.URL, c.deps.Peer), func(err error) {
		c.forwarder.running.Add(-1)
		c.metrics.forwarded.WithLabelValues(forwardResult(ctx, err)).Inc()
	}, nil
}

// forwardResult returns the label of a call that was passed on. It failed if the leader did not serve it; that the leader refused it
// for its content, or that the caller went away, is not a failure.
func forwardResult(ctx context.Context, err error) string {
	switch class := retry.ClassOf(rpc.ReasonOf(err)); {
	case err == nil || ctx.Err() != nil:
		return forwardDone
	case class == retry.Unavailable || class == retry.UnknownOutcome || class == retry.Unexplained:
		return forwardFailed
	default:
		return forwardDone
	}
}

// refuse counts a call that is not passed on.
func (c *ControlPlane) refuse(err error) error {
	c.metrics.forwarded.WithLabelValues(forwardRefused).Inc()
	return err
}

// errLeaderChanged ends the watches that are passed on: they go on at the next leader.
var errLeaderChanged = errors.New("another control plane leads")

// forwardMembers passes a watch of the members on. It ends when another instance leads.
func (c *ControlPlane) forwardMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) (err error) {
	const what = "watch members"
	_, changed := c.leadership.seenTerm() // before the leader is chosen
	leader, done, err := c.beginForward(ctx, what)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	call, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		select {
		case <-changed:
			cancel(errLeaderChanged)
		case <-c.calls.Draining():
			cancel(errClosing())
		case <-call.Done():
		}
	})
	err = leader.WatchMembers(rpc.WithForwarded(call), req, send)
	switch cause := context.Cause(call); {
	case ctx.Err() != nil:
		return err
	case errors.Is(cause, errLeaderChanged):
		return c.errNoLeader(what, errLeaderChanged.Error())
	case cause != nil:
		return cause
	default:
		return err
	}
}
