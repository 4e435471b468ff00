package readstream

import (
	"fmt"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/role/admission"
	"scribe/internal/role/shedding"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func newGate(cfg *Config, now time.Time) *admission.Gate {
	return admission.NewGate(admission.GateConfig{
		Least: cfg.OpeningLeast, Most: cfg.OpeningMost, Slow: cfg.SlowOpening, PerSecond: cfg.OpeningsPerSecond, Burst: cfg.OpeningBurst,
	}, now)
}

// admitOpening lets a stream of a category look for its shards and positions, until leave, or refuses it: since too many do, or come too fast.
func (s *Server) admitOpening(cat *scribev1.Category) (leave func(), err error) {
	level := shedding.LevelOf(cat)
	var asked admission.Priorities
	asked[level] = true
	refused, end := s.gate.EnterRequest(time.Now(), asked)
	if end != nil {
		return func() { end(time.Now()) }, nil
	}
	r := refused[level]
	s.metrics.notAdmitted.WithLabelValues(r.Cause).Inc()
	after := r.After
	if after == 0 {
		after = backoff.Jitter(s.deps.Random, s.cfg.RetryAfter, 0.5)
	}
	state := s.gate.ReadState()
	why := fmt.Sprintf("%d streams are being opened, which takes %v, and at most %d may", state.Inside, state.Latency.Round(time.Millisecond), state.Length)
	switch r.Cause {
	case admission.CauseRate:
		why = fmt.Sprintf("this server opens %.0f streams a second", s.cfg.OpeningsPerSecond)
	case admission.CausePriority:
		why += ": the rest is kept for categories above priority " + scribev1.EnumName(level)
	}
	return nil, rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after, "%s: try again, or another server", why)
}
