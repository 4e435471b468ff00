package writeproxy

import (
	"scribe/internal/role/quota"
	"scribe/internal/role/traffic"
)

// countTraffic counts the outcomes of a request's frames by category, a run of neighbours of one category at a time. Frames of categories that do not
// exist are not counted: their names are whatever somebody sent.
func (p *Proxy) countTraffic(items []frameItem) {
	if p.deps.Traffic == nil {
		return
	}
	var run traffic.Counts
	for i := range items {
		it := &items[i]
		if it.category == nil {
			continue
		}
		it.countInto(&run)
		if i == len(items)-1 || items[i+1].category != it.category {
			c := it.category
			p.deps.Traffic.Add(traffic.Category{Name: c.GetName(), Owner: c.GetOwner(), Quota: c.GetQuotaBytesPerSecond()}, run)
			run = traffic.Counts{}
		}
	}
}

// countInto adds the frame's outcome to counts.
func (it *frameItem) countInto(a *traffic.Counts) {
	messages := uint64(it.messages) //nolint:gosec // not negative
	switch {
	case it.result.GetSampledOut():
		a.SampledMessages += messages
	case it.result.GetError() == nil:
		a.WrittenMessages += messages
		a.WrittenBytes += uint64(len(it.bytes))
	default:
		a.FailedMessages += messages
		switch it.overQuota {
		case "":
			return
		case quota.OfOwner:
			a.OverOwnerQuotaMessages += messages
		case quota.OfPrefix:
			a.OverPrefixQuotaMessages += messages
		case quota.OfCategory:
		}
		a.OverQuotaMessages += messages
	}
}
