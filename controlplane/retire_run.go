package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/controlplane/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// retireCategories retires deleted categories until the control plane stops.
func (c *ControlPlane) retireCategories() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.stopped.Done():
			return
		case <-timer.C:
		case <-c.retireSchedule.wake:
		}
		wait := c.retireDue(c.stopped)
		timer.Reset(wait)
	}
}

// retireDue executes the work that is due, and returns how long to wait for the next.
func (c *ControlPlane) retireDue(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		now := time.Now()
		t := c.retireSchedule.nextTurn(now)
		term := c.leadership.currentTerm(now)
		if term == nil { // the leader retires; this one looks again when it leads
			return retireInterval
		}
		switch {
		case len(t.asked) > 0 && c.deps.Retirer == nil: // a pass counts them
		case len(t.asked) > 0:
			done, failed := c.retireSome(ctx, term, t.asked)
			c.retireSchedule.noteRequested(time.Now(), done, failed)
		case t.page:
			c.retirePage(ctx, term, t.after)
		default:
			return t.wait
		}
	}
	return 0
}

// retirePage retires one page of the store's entries.
func (c *ControlPlane) retirePage(ctx context.Context, term *heldTerm, after string) {
	if after == "" {
		c.countRetiring(ctx)
	}
	if c.deps.Retirer == nil {
		c.retireSchedule.notePage(time.Now(), "", false, 0, 0)
		return
	}
	r := kv.KeyRange{Prefix: retiringPrefix, Limit: retirePage}
	if after != "" {
		r.After = retiringKey(after)
	}
	page, err := c.deps.Store.Range(ctx, r)
	if err != nil {
		if ctx.Err() == nil {
			c.logger.Error("deleted categories not read: retrying", "error", err)
		}
		c.retireSchedule.notePage(time.Now(), after, true, 0, 1)
		return
	}
	var (
		list []retiringCategory
		last = after
	)
	for _, e := range page.Entries {
		last = strings.TrimPrefix(e.Key, retiringPrefix)
		p, err := c.decodeRetiring(e)
		if err != nil {
			c.logger.Error("ignoring damaged deleted category: not retired", "key", e.Key, "error", err)
			continue
		}
		list = append(list, p)
	}
	done, failed := c.retireSome(ctx, term, list)
	c.retireSchedule.notePage(time.Now(), last, page.More, done, failed)
}

// decodeRetiring decodes an entry, and counts damage.
func (c *ControlPlane) decodeRetiring(e kv.Entry) (retiringCategory, error) {
	cat, err := decodeDeleted(e.Key, e.Value)
	if err != nil {
		c.metrics.damaged.Inc()
		return retiringCategory{}, err
	}
	return retiringCategory{name: cat.GetName(), id: cat.GetId(), revision: e.Revision}, nil
}

// countRetiring counts the pending entries. The count is dropped if they change meanwhile.
func (c *ControlPlane) countRetiring(ctx context.Context) {
	counted, n := c.retireSchedule.beginCount(), int64(0)
	for _, err := range kv.All(ctx, c.deps.Store, retiringPrefix) {
		if err != nil {
			return // the reader of the pass's first page reports the error
		}
		n++
	}
	if counted(n) && n > 0 && c.deps.Retirer == nil {
		c.logger.Warn("deleted categories can't be retired without a metadata engine: their names stay unusable", "categories", n)
	}
}

// retireSome retires categories concurrently, and returns the numbers of successes and failures.
func (c *ControlPlane) retireSome(ctx context.Context, term *heldTerm, list []retiringCategory) (done, failed int) {
	var (
		group errgroup.Group
		mu    sync.Mutex
		id    uint32 // of the first failure
		first error
	)
	group.SetLimit(retireParallel)
	for _, p := range list {
		group.Go(func() error {
			if err := c.retireOne(ctx, term, p); err != nil && ctx.Err() == nil {
				c.metrics.retireFailures.Inc()
				mu.Lock()
				defer mu.Unlock()
				if failed++; failed == 1 {
					id, first = p.id, err
				}
			}
			return nil
		})
	}
	_ = group.Wait() // failures are counted
	if failed > 0 {
		c.logger.Warn("deleted categories not retired: retrying", "categories", failed, "id", id, "error", first)
	}
	return len(list) - failed, failed
}

// retireOne retires the logs of a category, then removes its entry.
func (c *ControlPlane) retireOne(ctx context.Context, term *heldTerm, p retiringCategory) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RetireTimeout)
	defer cancel()
	if err := c.deps.Retirer.Retire(ctx, p.id); err != nil {
		return err
	}
	c.retireSchedule.beginChange()
	_, err := c.deps.Store.Commit(ctx, term.only(kv.Delete(retiringKey(p.name)).If(p.revision))...)
	if err != nil {
		c.retireSchedule.endChange(0)
	}
	switch {
	case errors.Is(err, kv.ErrConflict): // another control plane was faster, and the name may even have been used again since
		c.retireSchedule.requestScan()
		c.leadership.wake.WakeUp() // or it leads
	case err != nil:
		return fmt.Errorf("remove %s: %w", retiringKey(p.name), err)
	default:
		c.retireSchedule.endChange(-1)
		c.metrics.retired.Inc()
		c.logger.Info("deleted category retired", "category", p.name, "id", p.id)
	}
	c.retireSchedule.wakeWaiters()
	return nil
}

// awaitRetired waits until the deleted category of that name is retired, for a bounded time.
func (c *ControlPlane) awaitRetired(ctx context.Context, what, name string) error {
	timeout := time.NewTimer(c.cfg.CreatePatience)
	defer timeout.Stop()
	for asked := false; ; asked = true {
		settled := c.retireSchedule.entryRemoved() // before the store is read, so that no removal is missed
		e, err := c.deps.Store.Get(ctx, retiringKey(name))
		if errors.Is(err, kv.ErrNotFound) {
			return nil
		}
		if err != nil {
			return request.ReadError(what, err)
		}
		p, err := c.decodeRetiring(e)
		if err != nil {
			return request.ReadError(what, err)
		}
		refusal := func() error {
			return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second,
				"%s: the logs of the deleted category of that name (id %d) have not ended yet, and what writers that don't know of the deletion "+
					"put into them would be lost: the metalog role must be reachable from the control plane; try again", what, p.id)
		}
		if c.deps.Retirer == nil {
			return refusal()
		}
		if !asked {
			c.retireSchedule.requestNow(p)
		}
		select {
		case <-settled:
		case <-timeout.C:
			return refusal()
		case <-ctx.Done():
			return refusal()
		case <-c.calls.Draining():
			return errClosing()
		}
	}
}
