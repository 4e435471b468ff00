package faults

import (
	"testing"
	"time"
)

// TestPause stops processes for longer than their lease, and lets them go on: what they had begun meets the work of those that took
// over. A batcher that comes back must not commit over its successor.
func TestPause(t *testing.T) {
	t.Parallel()
	t.Run("batchers", func(t *testing.T) {
		s := begin(t, "pause batchers")
		for range rounds(t) {
			for _, name := range []string{batcher1, batcher2, batcher1, batcher2} {
				length := leaseTTL/2 + time.Duration(s.rng.Int64N(int64(2*leaseTTL)))
				s.step("a pause of "+name+" of "+length.String(), length, s.pauseProcess(name), s.resumeProcess(name))
			}
			// Both, one after the other: each is the other's successor.
			s.step("pauses of both batchers", time.Second, func() {
				s.pauseProcess(batcher1)()
				pause(t, leaseTTL+leaseTTL/2)
				s.pauseProcess(batcher2)()
				s.resumeProcess(batcher1)()
			}, s.resumeProcess(batcher2))
		}
		s.end()
	})
	t.Run("the others", func(t *testing.T) {
		s := begin(t, "pause others")
		for range rounds(t) {
			for _, name := range drawSome(s, 2, []string{controlPlane, writeProxy1, agent, reader2}) {
				s.step("a pause of "+name, leaseTTL+leaseTTL/5, s.pauseProcess(name), s.resumeProcess(name))
			}
		}
		s.end()
	})
}
