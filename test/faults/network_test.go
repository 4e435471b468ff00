package faults

import (
	"testing"
	"time"

	"scribe/test/netfault"
)

// TestNetwork cuts and slows the connections between processes: nothing passes to one of them, or its answers don't, while it reaches
// the others.
func TestNetwork(t *testing.T) {
	s := begin(t, "network")
	for range rounds(t) {
		for _, names := range drawSome(s, 3, [][]string{{batcher1}, {batcher2}, {writeProxy1}, {controlPlane}, {batcher1, batcher2}, {reader1, writeProxy2}}) {
			what := "a cut of"
			for _, name := range names {
				what += " " + name
			}
			mode := []netfault.Mode{netfault.Hang, netfault.LoseAnswers}[s.rng.IntN(2)]
			s.step(what, leaseTTL+leaseTTL/2, s.set(mode, names...), s.set(netfault.Pass, names...))
		}
		everybody := []string{controlPlane, metaLog, batcher1, batcher2, writeProxy1, writeProxy2, agent}
		s.step("a cut of everybody", outage(t), s.set(netfault.Hang, everybody...), s.set(netfault.Pass, everybody...))
		s.step("connections that were cut at random", 3*time.Second,
			s.chaos(netfault.Chaos{CutRequest: 0.01, CutAnswer: 0.01, Delay: 0.1, MaxDelay: 20 * time.Millisecond}, everybody...),
			s.chaos(netfault.Chaos{}, everybody...))
	}
	s.end()
}
