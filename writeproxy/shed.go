package writeproxy

import (
	"scribe/internal/role/shedding"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// shedItems refuses frames of categories that give way to others of higher priority, when memory is short. All frames of a priority in a
// request have the same fate, so that none overtakes one before it.
func (p *Proxy) shedItems(items []frameItem) {
	var (
		now      = p.now()
		category *scribev1.Category
		asked    [shedding.Levels]bool
		refused  [shedding.Levels]*scribev1.FrameResult
		result   *scribev1.FrameResult
		sum      = 0
	)
	for i := range items {
		it := &items[i]
		if it.done {
			continue
		}
		if it.category != category {
			category = it.category
			level := shedding.LevelOf(category)
			if !asked[level] {
				asked[level] = true
				p.shedder.Note(now, level)
				if reserved := p.shedder.ReservedShare(now, level); reserved > 0 && shedding.GivesWay(reserved, p.writes.Used(), p.writes.Limit()) {
					refused[level] = &scribev1.FrameResult{Error: rpc.Info(p.shedError(level))}
				}
			}
			result = refused[level]
		}
		if result != nil {
			it.done, it.result = true, result
			sum += len(it.bytes)
		}
	}
	if sum > 0 {
		p.metrics.shed.Add(float64(sum))
	}
}

// shedError returns the error for frames that give way.
func (p *Proxy) shedError(level scribev1.Priority) error {
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, p.cfg.RetryMax,
		"the write proxy holds %d bytes of requests of at most %d, and keeps the rest for categories above priority %s: try again later",
		p.writes.Used(), p.writes.Limit(), scribev1.EnumName(level))
}
