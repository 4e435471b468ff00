package app

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/delivery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/writeproxy"
)

// ownPause is how long the members of the cell are not asked for again after they could not all have the category of the counts.
const ownPause = 10 * time.Second

// ownAnswers remembers that.
type ownAnswers struct {
	sync.Mutex
	err  error
	till time.Time
}

// ownCategory is what the category of the cell's counts is to be, which the first write creates. Members of older versions take its name for damage:
// until there are none, the counts wait where they were made.
func (a *App) ownCategory(ctx context.Context, name string) (*scribev1.Category, error) {
	if name != delivery.Category || !a.cfg.Delivery {
		return nil, writeproxy.ErrNoOwnCategory
	}
	if err := a.own.recent(a.opts.Host.Now()); err != nil {
		return nil, err
	}
	ready, err := a.knowOwnCategories(ctx)
	if err == nil && !ready {
		err = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, ownPause, "there are members of an older version, which does not know the category: upgrade them, or set --delivery=false")
	}
	if err != nil {
		a.own.remember(err, a.opts.Host.Now().Add(ownPause))
		return nil, err
	}
	return &scribev1.Category{Name: name, Schema: delivery.Schema, Retention: durationpb.New(delivery.Retention)}, nil
}

// recent returns why the category could not be created a moment ago.
func (o *ownAnswers) recent(now time.Time) error {
	o.Lock()
	defer o.Unlock()
	if now.Before(o.till) {
		return o.err
	}
	return nil
}

func (o *ownAnswers) remember(err error, till time.Time) {
	o.Lock()
	defer o.Unlock()
	o.err, o.till = err, till
}
