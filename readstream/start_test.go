package readstream

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
)

// TestWindowOfCategory: a reader's window wins over the category's, which wins over none.
func TestWindowOfCategory(t *testing.T) {
	minute := durationpb.New(time.Minute)
	for name, c := range map[string]struct {
		asked, category *durationpb.Duration
		want            int64
	}{
		"neither":             {nil, nil, merge.Unbounded},
		"the category's":      {nil, minute, time.Minute.Microseconds()},
		"the reader's":        {durationpb.New(time.Second), minute, time.Second.Microseconds()},
		"the reader's strict": {durationpb.New(0), minute, 0},
	} {
		p, err := newPlan(&scribev1.StreamStart{Category: "access", Window: c.asked}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got := p.windowIn(&scribev1.Category{OrderingWindow: c.category}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		repeatable := &scribev1.Category{OrderingWindow: c.category, Repeatable: scribev1.Repeatability_REPEATABILITY_BOUND}
		if got := p.windowIn(repeatable); got != 0 {
			t.Errorf("%s, where the category is repeatable: %d", name, got)
		}
	}
}
