package readproxy

import (
	"scribe/internal/role/traffic"
	scribev1 "scribe/proto/scribe/v1"
)

// countTraffic counts what an answer has of its category, which is nil if it is another region's.
func (a *fetchAnswer) countTraffic(cat *scribev1.Category, res *scribev1.FetchResponse) {
	if a.s.deps.Traffic == nil {
		return
	}
	var sum traffic.Counts
	for i, p := range res.GetPayloads() {
		if p.GetError() != nil {
			sum.FailedPayloads++
			continue
		}
		if p.GetSampledOut() {
			continue
		}
		sum.ReadPayloads++
		sum.ReadBytes += uint64(len(p.GetData()))
		sum.ReadMessages += uint64(a.items[i].pointer.Messages)
	}
	a.s.deps.Traffic.Add(traffic.Category{Name: a.category, Owner: cat.GetOwner(), Quota: cat.GetQuotaBytesPerSecond()}, sum)
}
