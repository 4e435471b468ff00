package faults

import (
	"testing"
	"time"

	"scribe/test/netfault"
)

// TestMetalog stalls what serves the metadata logs, cuts its connections, and loses its answers: what was appended may not be known to
// who appended it.
func TestMetalog(t *testing.T) {
	t.Parallel()
	s := begin(t, "metalog")
	pass := s.set(netfault.Pass, metaLog)
	for range rounds(t) {
		s.step("appends whose answers were lost", time.Second, s.set(netfault.LoseAnswers, metaLog), pass)
		s.step("a metalog that hung", outage(t), s.set(netfault.Hang, metaLog), pass)
		s.step("a metalog that was not there", outage(t), s.set(netfault.Refuse, metaLog), pass)
		s.step("a metalog that was paused", outage(t), s.pauseProcess(metaLog), s.resumeProcess(metaLog))
		s.step("connections that were cut at random", 2*time.Second,
			s.chaos(netfault.Chaos{CutRequest: 0.02, CutAnswer: 0.05, Delay: 0.2, MaxDelay: 50 * time.Millisecond}, metaLog), s.chaos(netfault.Chaos{}, metaLog))
		s.step("appends whose answers were lost, again and again", 0, func() {
			for range 5 {
				s.set(netfault.LoseAnswers, metaLog)()
				s.moment(200 * time.Millisecond)
				pass()
				s.moment(200 * time.Millisecond)
			}
		}, pass)
	}
	s.end()
}
