package enforce

import (
	"context"

	"scribe/internal/cell/access"
	"scribe/internal/cell/audit"
	"scribe/internal/format/delivery"
	"scribe/internal/role/request"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// writeService lets frames pass whose categories the caller may write to.
type writeService struct {
	rpc.WriteService
	e *Enforcer
}

// Publish implements rpc.WriteService.
func (s writeService) Publish(ctx context.Context, req *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	if err := s.e.Allow(ctx, access.Write, req.GetCategory()); err != nil {
		return nil, err
	}
	return s.WriteService.Publish(ctx, req)
}

// Write implements rpc.WriteService. Frames of categories that the caller may not write to are answered with the denial; the others
// are written. The request is looked through once for each run of frames of one category, and nothing is kept of it unless
// something is denied.
func (s writeService) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	p := principal.FromContext(ctx)
	everywhere := s.e.IsFree(ctx) || s.e.rights.Set().Decide(p, access.Write, "", "", s.e.now()) == access.Allowed
	if p.Kind == principal.Member || everywhere && (s.e.trail == nil || !writesTrail(req.GetFrames())) {
		return s.WriteService.Write(ctx, req)
	}
	denied, frames := s.findDenied(ctx, req.GetFrames())
	switch {
	case len(denied) == 0:
		return s.WriteService.Write(ctx, req)
	case len(denied) == frames:
		return nil, denied[0].err
	}
	return s.writeAllowed(ctx, req, denied)
}

// writesTrail reports whether a frame is of the audit trail.
func writesTrail(data []byte) bool {
	for frames := request.WalkHeaders(data); frames.Next(); {
		if frames.Err == nil && string(frames.Category) == audit.Category {
			return true
		}
	}
	return false
}

// deniedFrame is a frame that is not written.
type deniedFrame struct {
	index int
	err   error
}

// findDenied returns the frames that the caller may not write, in order, and the number of frames. What can't be parsed is left to
// the role, which refuses it.
func (s writeService) findDenied(ctx context.Context, data []byte) (denied []deniedFrame, count int) {
	var (
		current string
		begun   bool
		err     error
	)
	for frames := request.WalkHeaders(data); frames.Next(); {
		count++
		if frames.Err != nil {
			continue
		}
		switch {
		case string(frames.Category) == delivery.Category:
			begun, err = false, s.allowRows(ctx, frames.Bytes)
		case !begun || string(frames.Category) != current:
			current, begun = frames.CategoryName(), true
			err = s.e.Allow(ctx, access.Write, current)
		}
		if err != nil {
			denied = append(denied, deniedFrame{frames.Index, err})
		}
	}
	return denied, count
}

// allowRows returns an error unless the caller may count the deliveries that a frame is about: who passes messages on may write to their categories,
// who was given them may read these. A frame is about one category as a rule, which is asked about once.
func (s writeService) allowRows(ctx context.Context, frame []byte) error {
	type asked struct {
		category string
		what     access.Permission
	}
	var last asked
	err := delivery.RowsOf(frame, func(r *delivery.Row, _ int64) error {
		next := asked{r.Category, access.Write}
		if r.Hop == delivery.Reader {
			next.what = access.Read
		}
		if next == last {
			return nil
		}
		last = next
		return s.e.Allow(ctx, next.what, next.category)
	})
	if err != nil && rpc.ReasonOf(err) == scribev1.Reason_REASON_UNSPECIFIED {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "category %s takes delivery counts and nothing else: %w", delivery.Category, err)
	}
	return err
}

// writeAllowed writes the frames that are not denied, and answers the others with their denials.
func (s writeService) writeAllowed(ctx context.Context, req *scribev1.WriteRequest, denied []deniedFrame) (*scribev1.WriteResponse, error) {
	refusals := make(map[int]error, len(denied))
	for _, d := range denied {
		refusals[d.index] = d.err
	}
	rest := &scribev1.WriteRequest{Ack: req.GetAck(), Lingered: req.GetLingered()}
	places := make(map[uint32]uint32) // of frames in the rest
	var order []error                 // of all frames
	frames := request.WalkHeaders(req.GetFrames())
	for frames.Next() {
		err := refusals[frames.Index]
		if order = append(order, err); err == nil {
			places[uint32(frames.Index)] = uint32(len(places)) //nolint:gosec // a request is bounded
			rest.Frames = append(rest.Frames, frames.Bytes...)
		}
	}
	if err := frames.Fault(); err != nil {
		return nil, err
	}
	for _, i := range req.GetFollows() {
		if at, ok := places[i]; ok {
			rest.Follows = append(rest.Follows, at)
		}
	}
	res, err := s.WriteService.Write(ctx, rest)
	if err != nil {
		return nil, err
	}
	out := &scribev1.WriteResponse{Ordered: res.GetOrdered(), Results: make([]*scribev1.FrameResult, 0, len(order))}
	left := res.GetResults()
	for _, err := range order {
		switch {
		case err != nil:
			out.Results = append(out.Results, &scribev1.FrameResult{Error: rpc.Info(err)})
		case len(left) == 0:
			return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer has %d results for %d frames", len(res.GetResults()), len(places))
		default:
			out.Results, left = append(out.Results, left[0]), left[1:]
		}
	}
	return out, nil
}
