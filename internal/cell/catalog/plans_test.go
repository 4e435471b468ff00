package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	scribev1 "scribe/proto/scribe/v1"
)

// TestPlans: a view has the plans that the watch sends, announces others, and keeps them until a new watch has sent the complete set.
func TestPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane()
		p.put("a", 1, false)
		v := newView(t, p, nil)
		closeView := runView(t, v)
		<-v.Ready()
		want := func(want string) {
			t.Helper()
			synctest.Wait()
			byID, _ := v.Plans()
			var out []string
			for id, plan := range byID {
				if v.PlanOf(id) != plan {
					t.Errorf("PlanOf(%d) is another plan than that of Plans", id)
				}
				out = append(out, fmt.Sprintf("%d:%d", id, len(plan.GetShards())))
			}
			if slices.Sort(out); strings.Join(out, " ") != want {
				t.Errorf("plans %v, want %q", out, want)
			}
		}
		plan := func(id uint32, shards int) *scribev1.CategoryPlan {
			return &scribev1.CategoryPlan{Category: id, Shards: make([]*scribev1.ShardPlan, shards)}
		}
		want("")
		_, replaced := v.Plans()
		p.tell(&scribev1.WatchCategoriesResponse{Plans: []*scribev1.CategoryPlan{plan(1, 1), plan(2, 1)}})
		want("1:1 2:1")
		<-replaced
		_, replaced = v.Plans()
		p.put("b", 2, true)
		synctest.Wait()
		select {
		case <-replaced:
			t.Error("other plans are announced with a category")
		default:
		}
		p.tell(&scribev1.WatchCategoriesResponse{Plans: []*scribev1.CategoryPlan{plan(1, 3)}, Unplanned: []uint32{2, 9}})
		want("1:3")
		<-replaced
		p.tell(&scribev1.WatchCategoriesResponse{PlansReset: true, Plans: []*scribev1.CategoryPlan{plan(5, 2)}})
		want("5:2")
		p.tell(&scribev1.WatchCategoriesResponse{Reset_: true})
		want("5:2")
		p.tell(&scribev1.WatchCategoriesResponse{Synced: true})
		want("")
		closeView()
	})
}
