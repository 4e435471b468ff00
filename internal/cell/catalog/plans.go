package catalog

import (
	"maps"

	scribev1 "scribe/proto/scribe/v1"
)

// planSet is the plans of micro-shards of all categories that have one, by the category's id. It is never changed: a watch replaces it.
// The file of the last good state has no plans. A process that starts without the control plane works without.
type planSet struct {
	byID map[uint32]*scribev1.CategoryPlan
	// replaced is closed when another set has replaced this one.
	replaced chan struct{}
}

func newPlanSet(byID map[uint32]*scribev1.CategoryPlan) *planSet {
	return &planSet{byID: byID, replaced: make(chan struct{})}
}

// PlanOf returns the plan of a category's micro-shards; nil if it has none. It takes no lock. The plan is shared and must not be changed.
func (v *View) PlanOf(category uint32) *scribev1.CategoryPlan { return v.plans.Load().byID[category] }

// Plans returns all plans, and a channel that is closed when there are others. They are shared and must not be changed.
func (v *View) Plans() (byID map[uint32]*scribev1.CategoryPlan, replaced <-chan struct{}) {
	p := v.plans.Load()
	return p.byID, p.replaced
}

// applyPlans takes the plans of a message. v.mu is held.
func (v *View) applyPlans(msg *scribev1.WatchCategoriesResponse) {
	old := v.plans.Load()
	forget := (msg.GetPlansReset() || msg.GetSynced()) && len(old.byID) > 0 // until the complete set is there, the old plans do
	if !forget && len(msg.GetPlans()) == 0 && len(msg.GetUnplanned()) == 0 {
		return
	}
	byID := make(map[uint32]*scribev1.CategoryPlan, len(old.byID)+len(msg.GetPlans()))
	if !forget {
		maps.Copy(byID, old.byID)
	}
	for _, p := range msg.GetPlans() {
		byID[p.GetCategory()] = p
	}
	for _, id := range msg.GetUnplanned() {
		delete(byID, id)
	}
	v.plans.Store(newPlanSet(byID))
	close(old.replaced)
}
