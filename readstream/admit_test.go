package readstream

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestOpeningsAreBounded: while the engine does not answer, no more streams are opened than may be, those of lower priority are refused at once with a hint, and the
// highest is not touched by them; when it answers, all are opened.
func TestOpeningsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.create(shardID(0, 1))
		cat, _ := h.categories.Lookup(testCategory)
		of := func(p scribev1.Priority) {
			h.categories.set(&scribev1.Category{Name: cat.GetName(), Id: cat.GetId(), Shards: cat.GetShards(), Priority: p})
		}
		hold := make(chan struct{})
		h.log.mu.Lock()
		h.log.mu.listed = func() { <-hold }
		h.log.mu.Unlock()
		var waiting []*client
		of(scribev1.Priority_PRIORITY_LOW)
		for range 2 {
			waiting = append(waiting, h.dial())
		}
		synctest.Wait()
		if n := h.metric("queue_requests"); n != 2 {
			t.Fatalf("%v streams are being opened", n)
		}
		err := h.dial().end()
		if info := rpc.Info(err); info.GetReason() != scribev1.Reason_REASON_OVERLOADED || info.GetRetryAfter().AsDuration() <= 0 || !strings.Contains(err.Error(), "are being opened") {
			t.Errorf("one more: %v", err)
		}
		of(scribev1.Priority_PRIORITY_CRITICAL)
		for range 2 {
			waiting = append(waiting, h.dial())
		}
		synctest.Wait()
		if n := h.metric("queue_requests"); n != 4 {
			t.Errorf("%v streams are being opened, want those of the highest beside the lowest", n)
		}
		wantReason(t, h.dial().end(), scribev1.Reason_REASON_OVERLOADED)
		if n := h.metric("openings_refused_total"); n != 2 {
			t.Errorf("%v refusals are counted", n)
		}
		close(hold)
		for _, c := range waiting {
			c.opened()
		}
		<-time.After(5 * time.Second)
		of(scribev1.Priority_PRIORITY_LOW)
		h.open()
		if n := h.metric("queue_requests"); n != 0 {
			t.Errorf("%v streams are still being opened", n)
		}
	}, func(c *Config) { c.OpeningMost, c.OpeningLeast = 2, 2 })
}
