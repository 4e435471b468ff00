package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// unknownName is the limiter of a name that the control plane did not know, could not be asked about, or had no newer state of
// than the view.
type unknownName struct {
	// since is when the current TTL began; asks counts requests in it.
	since time.Time
	asks  int
	// err is the last answer; nil when the view has the category.
	err error
}

// errCurrent means that the control plane is not asked about a category in the view: it was asked a moment ago, and had nothing
// newer.
var errCurrent = errors.New("catalog: the view is current")

// Resolve asks the control plane for a category. It finds a category as soon as its create has returned, and sees a change as
// soon as its update has returned. Callers that can use the view's state call Lookup first. At most one request runs for a name,
// however many callers wait for the answer.
//
// A category that does not exist is REASON_UNKNOWN_CATEGORY, with the control plane's suggestions. Above the limits of requests,
// Resolve repeats the last answer, or returns REASON_OVERLOADED. The category is shared and must not be changed.
func (v *View) Resolve(ctx context.Context, name string) (*scribev1.Category, error) {
	if err := record.ValidateCategory(name); err != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "resolve category: %w", err)
	}
	if err := v.mayAsk(name); err != nil {
		v.resolves.WithLabelValues(resultLimited).Inc()
		if c, ok := v.Lookup(name); ok && errors.Is(err, errCurrent) {
			return c, nil
		}
		return nil, err
	}
	answers := v.flights.DoChan(name, func() (any, error) {
		if !v.questions.Enter() {
			return nil, rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "resolve category: the process is shutting down")
		}
		defer v.questions.Leave()
		return v.askControlPlane(name)
	})
	select {
	case a := <-answers:
		c, _ := a.Val.(*scribev1.Category)
		return c, a.Err
	case <-ctx.Done():
		return nil, ctx.Err() // the request continues for other callers; ResolveTimeout bounds it, and Close waits for it
	}
}

// mayAsk counts a request for a name, and returns an error above the limits.
func (v *View) mayAsk(name string) error {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if u, ok := v.mu.unknown.Get(name); ok && now.Sub(u.since) < v.cfg.UnknownTTL {
		known := u.err == nil && v.index.Load().lookup(name) != nil
		switch {
		case u.asks < v.cfg.UnknownAsks:
			u.asks++
		case known:
			return errCurrent
		case u.err != nil:
			return u.err
		}
	}
	if !v.limiter.AllowN(now, 1) {
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 100*time.Millisecond,
			"resolve category %q: too many names are unknown here, the control plane is not asked for more than %d a second", name, v.cfg.ResolveRate)
	}
	return nil
}

func (v *View) askControlPlane(name string) (*scribev1.Category, error) {
	// Not the caller's context: others may wait for the same answer.
	ctx, cancel := context.WithTimeout(context.Background(), v.cfg.ResolveTimeout)
	defer cancel()
	resp, err := v.source.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: name})
	if err == nil && (resp.GetCategory().GetName() != name || resp.GetCategory().GetId() == 0) {
		err = rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "resolve category %q: the answer is about %q", name, resp.GetCategory().GetName())
	}
	if err == nil {
		v.resolves.WithLabelValues(resultFound).Inc()
		v.learnCategory(resp.GetCategory())
		return resp.GetCategory(), nil
	}
	result := resultFailed
	if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
		result = resultUnknown
	} else {
		err = unreachableError(name, err)
	}
	v.resolves.WithLabelValues(result).Inc()
	v.rememberFailure(name, err)
	return nil, err
}

// unreachableError makes a failed request retryable for callers: whether the category exists is unknown.
func unreachableError(name string, err error) error {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_UNSPECIFIED, scribev1.Reason_REASON_UNKNOWN_OUTCOME:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second,
			"resolve category %q: the control plane does not answer: %w", name, err)
	default:
		return err
	}
}

// rememberFailure records that a name could not be resolved.
func (v *View) rememberFailure(name string, err error) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	if u, ok := v.mu.unknown.Get(name); ok && now.Sub(u.since) < v.cfg.UnknownTTL {
		u.err = err
		return
	}
	v.mu.unknown.Add(name, &unknownName{since: now, asks: 1, err: err})
}

// learnCategory puts a category into the view that the watch has not delivered yet, or not in this revision.
func (v *View) learnCategory(c *scribev1.Category) {
	now := time.Now()
	v.mu.Lock()
	defer v.mu.Unlock()
	x := v.index.Load()
	if old := x.lookup(c.GetName()); old != nil && old.GetRevision() >= c.GetRevision() {
		if u, ok := v.mu.unknown.Get(c.GetName()); !ok || u.err != nil || now.Sub(u.since) >= v.cfg.UnknownTTL {
			v.mu.unknown.Add(c.GetName(), &unknownName{since: now, asks: 1})
		}
		return
	}
	v.mu.unknown.Remove(c.GetName())
	// The watch may have passed the category's creation, and its deletion, while the answer was on its way. And unconfirmed
	// categories must be bounded. The answer is correct even if the view does not keep it.
	if (v.mu.synced && c.GetRevision() <= v.mu.revision) || len(v.mu.ahead) >= maxAhead {
		return
	}
	v.mu.ahead[c.GetName()] = aheadOfWatch{category: c, since: now}
	v.putNewer(x, c)
}

// String describes the view for logs.
func (v *View) String() string {
	return fmt.Sprintf("catalog of %d categories at revision %d", v.Len(), v.Revision())
}
