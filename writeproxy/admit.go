package writeproxy

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
		Least: cfg.RequestsLeast, Most: cfg.RequestsMost, Slow: cfg.SlowAnswer, PerSecond: cfg.RequestsPerSecond, Burst: cfg.RequestBurst,
	}, now)
}

// admitItems refuses items that can't be sent to batchers now, since too much waits for them or comes too fast: those of the lowest priority first.
// All items of a priority have the same fate, so that none overtakes one before it. The caller calls leave when the others, which it
// returns, have their results.
func (c *writeCall) admitItems(items []*frameItem) (admitted []*frameItem, leave func()) {
	var asked admission.Priorities
	for _, it := range items {
		asked[shedding.LevelOf(it.category)] = true
	}
	refused, end := c.p.gate.EnterRequest(time.Now(), asked)
	var results [shedding.Levels]*scribev1.FrameResult
	some := false
	for level, r := range refused {
		if r.Cause != "" {
			some = true
			results[level] = &scribev1.FrameResult{Error: rpc.Info(c.p.gateError(r, scribev1.Priority(level)))} //nolint:gosec // below Levels
		}
	}
	leave = func() {
		if end != nil {
			end(time.Now())
		}
	}
	if !some {
		return items, leave
	}
	admitted = make([]*frameItem, 0, len(items))
	for _, it := range items {
		level := shedding.LevelOf(it.category)
		if results[level] == nil {
			admitted = append(admitted, it)
			continue
		}
		it.done, it.result = true, results[level]
		if it.group != nil {
			it.group.notAdmitted += int64(len(it.bytes))
		}
		c.p.metrics.notAdmitted.WithLabelValues(refused[level].Cause).Add(float64(len(it.bytes)))
	}
	for _, it := range items { // all frames of a group are here, and have the same fate
		if g := it.group; g != nil && g.notAdmitted > 0 {
			c.p.quotas.Refund(g.limits[:g.passed], g.notAdmitted, true)
			g.notAdmitted = 0
		}
	}
	return admitted, leave
}

// gateError returns the error for frames that the gate refuses.
func (p *Proxy) gateError(r admission.Refusal, level scribev1.Priority) error {
	after := r.After
	if after == 0 {
		after = backoff.Jitter(p.deps.Random, p.cfg.RetryMax, 0.5)
	}
	state := p.gate.ReadState()
	why := fmt.Sprintf("%d requests wait for batchers, which take %v to answer, and at most %d may", state.Inside, state.Latency.Round(time.Millisecond), state.Length)
	switch r.Cause {
	case admission.CauseRate:
		why = fmt.Sprintf("the write proxy takes %.0f requests a second", p.cfg.RequestsPerSecond)
	case admission.CausePriority:
		why += ": the rest is kept for categories above priority " + scribev1.EnumName(level)
	}
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after, "%s: try again later, or at another write proxy", why)
}
