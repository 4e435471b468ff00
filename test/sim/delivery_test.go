package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/completeness"
	"scribe/consumer"
	"scribe/internal/format/delivery"
	"scribe/internal/testkit/testsize"
	"scribe/test/history"
)

// storedCategories are the categories that the cell has blobs of.
func (w *world) storedCategories() []categoryPlan {
	if !w.plan.Delivery {
		return w.plan.Categories
	}
	return append(slices.Clone(w.plan.Categories), categoryPlan{Name: delivery.Category})
}

// verifyDelivery compares what the cell's counts say of its categories with the history, as soon as all have arrived: what was produced, what is
// stored, how often, and that nothing is on its way any more.
func (w *world) verifyDelivery(healed time.Time, readings map[string]*history.Reading) {
	c := w.newClient()
	defer c.transport.Close()
	via := w.plan.with(app.ReadStream)[0]
	for i := range w.plan.Categories {
		x := &w.plan.Categories[i]
		if !w.isCounted(x) {
			continue
		}
		report := w.history.Check(readings[x.Name], history.None)
		var sum delivery.Line
		var err error
		agree := func() bool {
			if sum, err = w.auditOnce(c, via, x.Name); err != nil {
				return false
			}
			return sum.Stored == int64(report.Seen-report.Copies) && sum.Copies == int64(report.Copies) && sum.Pending == 0 &&
				(sum.Produced == int64(report.Written) || w.isWrittenAgain(x)) && sum.Produced >= sum.Stored
		}
		w.await("the counts of "+x.Name+" agree with the history", healed, agree)
		w.note("%s: produced %d, stored %d and %d copies, dropped %d, sampled %d, pending %d, unaccounted %d (%v); the history has %d written, %d read, %d of them copies, %d failed",
			x.Name, sum.Produced, sum.Stored, sum.Copies, sum.Dropped, sum.Sampled, sum.Pending, sum.Unaccounted, err, report.Written, report.Seen, report.Copies, report.Failed)
	}
}

// isCounted reports whether each message of a category has a number, by which it is told from its copies, and is still there.
func (w *world) isCounted(x *categoryPlan) bool {
	return x.Retention == 0 && !slices.ContainsFunc(w.plan.Writers, func(p writerPlan) bool { return p.Category == x.Name && p.Kind == "publish" })
}

// isWrittenAgain reports whether a writer of a category writes some of its messages again, which its library counts again.
func (w *world) isWrittenAgain(x *categoryPlan) bool {
	return slices.ContainsFunc(w.plan.Writers, func(p writerPlan) bool { return p.Category == x.Name && p.Kind == "restarting" })
}

// auditOnce adds up what an audit says of a category.
func (w *world) auditOnce(c *client, via, category string) (sum delivery.Line, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := completeness.Read(ctx, completeness.Query{
		Server: w.process(via).url(), Category: category, Since: w.began.Add(-2 * time.Hour), Most: -1,
		Options: []consumer.Option{consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithRequestTimeout(10 * time.Second)},
	})
	if err == nil {
		err = answer.Log
	}
	if err == nil {
		err = answer.Counts
	}
	for i := range answer.Lines {
		l := &answer.Lines[i]
		sum.Produced += l.Produced
		sum.Stored += l.Stored
		sum.Copies += l.Copies
		sum.Dropped += l.Dropped
		sum.Sampled += l.Sampled
		sum.Pending += l.Pending
		sum.Unaccounted += l.Unaccounted
	}
	return sum, err
}

// TestDelivery runs seeds in which the cell counts deliveries.
func TestDelivery(t *testing.T) {
	s := &seedRunner{T: t, dir: t.TempDir()}
	for i := range max(1, testsize.Test(4, 2, 1)) {
		p := drawPlan(*firstSeed+uint64(i), 2*time.Minute, "") //nolint:gosec // not negative
		p.Delivery = true
		// After a recovery a log may have what its writers were never told of under other numbers, or begin anew.
		p.Faults = slices.DeleteFunc(p.Faults, func(f faultPlan) bool { return f.Kind == faultLostDisk || f.Kind == faultLostControl })
		s.runSeed(p)
	}
	if s.total.Acked == 0 {
		t.Errorf("nothing was tested: %v", &s.total)
	}
}
