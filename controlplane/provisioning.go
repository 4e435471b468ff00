package controlplane

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/controlplane/provision"
	"scribe/internal/base/logthrottle"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// maxPlanOps bounds the operations of a transaction that stores plans and histories. An entry has at most 4 KiB, and a condition comes
// on top.
const maxPlanOps = 100

// decodePlan decodes the stored plan of a category.
func decodePlan(key string, value []byte) (*scribev1.CategoryPlan, error) {
	p := new(scribev1.CategoryPlan)
	if err := proto.Unmarshal(value, p); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, key, err)
	}
	if id := categoryOfKey(planPrefix, key); id == 0 || p.GetCategory() != id || len(p.GetShards()) > provision.MaxPlanned {
		return nil, fmt.Errorf("%w: %s holds a plan of category %d with %d shards", kv.ErrCorrupt, key, p.GetCategory(), len(p.GetShards()))
	}
	return p, nil
}

// followPlans keeps the feed of the plans equal to the store until the control plane stops. Damaged plans are left out: a category
// without a plan works.
func (c *ControlPlane) followPlans() {
	isReadable := func(key string, value []byte) bool {
		_, err := decodePlan(key, value)
		if err != nil {
			c.metrics.damaged.Inc()
			c.logger.Error("ignoring damaged plan of micro-shards", "key", key, "error", err)
		}
		return err == nil
	}
	c.followKeys(planPrefix, func(all []kv.Entry, revision uint64) {
		entries := make(map[string]kv.Entry, len(all))
		for _, e := range all {
			if isReadable(e.Key, e.Value) {
				entries[e.Key] = e
			}
		}
		c.plans.replaceAll(entries, revision)
	}, func(b kv.EventBatch) {
		events := make([]kv.KeyEvent, 0, len(b.Events))
		for _, e := range b.Events {
			if e.Deleted || isReadable(e.Key, e.Value) {
				events = append(events, e)
			}
		}
		c.plans.applyEvents(events, b.Revision)
	})
}

// planShards plans the micro-shards of all categories while this control plane leads, until it stops.
func (c *ControlPlane) planShards() {
	ticker := time.NewTicker(c.cfg.PlanInterval)
	defer ticker.Stop()
	var (
		w       = planWorker{c: c, began: time.Now()}
		trouble logthrottle.Throttle
	)
	for {
		select {
		case <-c.stopped.Done():
			return
		case <-ticker.C:
		}
		if err := w.planOnce(); err != nil {
			c.metrics.planFailures.Inc()
			trouble.Failed(c.stopped, c.logger, "micro-shards could not be planned", "error", err)
			continue
		}
		trouble.Recovered(c.stopped, c.logger, "micro-shards are planned again")
	}
}

// planWorker is the state of planShards.
type planWorker struct {
	c     *ControlPlane
	began time.Time
	// planner is that of the term; nil before its state is read.
	planner  *provision.Planner
	splitter *provision.Splitter
	term     *heldTerm
	hour     int64
}

// planOnce takes a step and stores what came of it. Without leading it does nothing.
func (w *planWorker) planOnce() error {
	c := w.c
	term := c.leadership.currentTerm(time.Now())
	if term == nil {
		w.planner = nil
		return nil
	}
	ctx, cancel := context.WithTimeout(c.stopped, storeTimeout)
	defer cancel()
	at, hour := time.Since(w.began), c.deps.Now().Unix()/3600
	if w.planner == nil || w.term != term {
		p, err := c.loadPlanner(ctx, at, hour)
		if err != nil {
			return err
		}
		w.planner, w.splitter, w.term = p, provision.NewSplitter(c.provisionSettings()), term
	}
	if hour != w.hour {
		if err := w.forgetDropped(ctx); err != nil {
			return err
		}
		w.hour = hour
	}
	divided, single := make(map[provision.ShardID]provision.Rate), make(map[provision.ShardID]provision.Rate)
	for id, rate := range c.traffic.addUp(time.Now()) {
		if rate.oneLog {
			single[id] = rate.Rate
		} else {
			divided[id] = rate.Rate
		}
	}
	w.planner.Step(at, hour, divided)
	for _, id := range w.splitter.Step(at, single) {
		w.splitter.Rest(at, id.Category)
		c.splitBusy(ctx, id)
	}
	return w.storeChanges(ctx)
}

// splitBusy splits a shard that is too busy, if its category asks for that. What fails is tried again after the category's rest.
func (c *ControlPlane) splitBusy(ctx context.Context, id provision.ShardID) {
	cat := c.findCategory(id.Category)
	if !cat.GetAutoSplit() || len(cat.GetFormerLayouts()) >= maxFormerLayouts {
		return // only a person may make layouts be forgotten, since agents may still have frames of theirs
	}
	// A leader that is new does not know when others have split.
	if n := len(cat.GetLineage()); n > 0 && c.deps.Now().Sub(time.UnixMicro(cat.GetLineage()[n-1].GetSince())) < provision.SplitPause {
		return
	}
	_, err := c.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: cat.GetName(), Revision: cat.GetRevision(), SplitShard: &id.Shard})
	if err != nil {
		c.logger.Warn("a busy shard could not be split", "category", cat.GetName(), "shard", id.Shard, "error", err)
		return
	}
	c.metrics.splits.Inc()
	c.logger.Info("a busy shard was split", "category", cat.GetName(), "shard", id.Shard)
}

// findCategory returns the category with an id, as the feed has it; nil if there is none. It looks at all of them.
func (c *ControlPlane) findCategory(id uint32) (found *scribev1.Category) {
	c.feed.eachName(func(name string) {
		if found == nil {
			value, revision := c.feed.stateOf(name)
			if cat, err := decodeCategory(name, value, revision); err == nil && cat.GetId() == id {
				found = cat
			}
		}
	})
	return found
}

func (c *ControlPlane) provisionSettings() provision.Settings {
	return provision.Settings{MicroShardBytes: float64(c.cfg.MicroShardBytes), MicroShardMessages: float64(c.cfg.MicroShardMessages)}
}

// loadPlanner reads the plans and histories that the store has.
func (c *ControlPlane) loadPlanner(ctx context.Context, at time.Duration, hour int64) (*provision.Planner, error) {
	p := provision.New(c.provisionSettings())
	for e, err := range kv.All(ctx, c.deps.Store, planPrefix) {
		if err != nil {
			return nil, err
		}
		if plan, err := decodePlan(e.Key, e.Value); err == nil { // damage is reported by followPlans
			p.RestorePlan(at, plan)
		}
	}
	for e, err := range kv.All(ctx, c.deps.Store, trafficPrefix) {
		if err != nil {
			return nil, err
		}
		h, id := new(scribev1.TrafficHistory), categoryOfKey(trafficPrefix, e.Key)
		if err := proto.Unmarshal(e.Value, h); err != nil || id == 0 {
			c.metrics.damaged.Inc()
			c.logger.Error("ignoring damaged history of traffic", "key", e.Key, "error", err)
			continue
		}
		p.RestoreHistory(id, h, hour)
	}
	return p, nil
}

// forgetDropped ends the planning of categories that were deleted.
func (w *planWorker) forgetDropped(ctx context.Context) error {
	if categories, _ := w.planner.Tracked(); categories == 0 {
		return nil
	}
	dropped := make(map[uint32]bool)
	for e, err := range kv.All(ctx, w.c.deps.Store, droppedPrefix) {
		if err != nil {
			return err
		}
		dropped[categoryOfKey(droppedPrefix, e.Key)] = true
	}
	w.planner.Forget(func(id uint32) bool { return dropped[id] })
	return nil
}

// storeChanges stores what differs from the store, in transactions that only the leader can commit. The categories themselves do not
// change: a plan is not a revision.
func (w *planWorker) storeChanges(ctx context.Context) error {
	var (
		ops     []kv.Op
		pending []provision.Change
	)
	commit := func() error {
		if len(ops) == 0 {
			return nil
		}
		if _, err := w.c.deps.Store.Commit(ctx, w.term.only(ops...)...); err != nil {
			return w.c.termError("store plans of micro-shards", err)
		}
		for _, ch := range pending {
			w.planner.Stored(ch)
			if ch.NewPlan {
				w.c.metrics.planChanges.Inc()
			}
		}
		ops, pending = nil, nil
		return nil
	}
	for _, ch := range w.planner.Changes() {
		if ch.NewPlan {
			op, err := storedOrGone(planKey(ch.Category), ch.Plan, ch.Plan == nil)
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if ch.NewHistory {
			op, err := storedOrGone(trafficKey(ch.Category), ch.History, ch.History == nil)
			if err != nil {
				return err
			}
			ops = append(ops, op)
		}
		if pending = append(pending, ch); len(ops) >= maxPlanOps {
			if err := commit(); err != nil {
				return err
			}
		}
	}
	return commit()
}

// storedOrGone returns the operation that stores a message, or removes the key.
func storedOrGone(key string, m proto.Message, gone bool) (kv.Op, error) {
	if gone {
		return kv.Delete(key), nil
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return kv.Put(key, value), err
}
