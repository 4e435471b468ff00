package app

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"scribe/internal/role/traffic"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream"
)

// maxTraffic is how many categories an answer names of each kind: those that are written and read, and those that have readers.
const maxTraffic = traffic.MaxCategories

// GetTraffic implements rpc.ProcessService.
func (s processService) GetTraffic(_ context.Context, req *scribev1.GetTrafficRequest) (*scribev1.GetTrafficResponse, error) {
	limit := maxTraffic
	if n := int(req.GetLimit()); n > 0 {
		limit = min(n, maxTraffic)
	}
	busiest, rest := s.a.traffic.Busiest(limit, req.GetPrefix())
	res := &scribev1.GetTrafficResponse{
		Id: s.a.id, Now: s.a.opts.Host.unixMicro(), StartedAt: s.a.started.UnixMicro(), Rest: s.a.trafficMessage(traffic.CategoryCounts{Counts: rest}),
	}
	byName := make(map[string]*scribev1.CategoryTraffic, len(busiest))
	for i := range busiest {
		m := s.a.trafficMessage(busiest[i])
		byName[m.GetCategory()] = m
		res.Categories = append(res.Categories, m)
	}
	for _, lag := range s.lags(limit, req.GetPrefix()) {
		m := byName[lag.Category]
		if m == nil {
			m = &scribev1.CategoryTraffic{Category: lag.Category, Owner: lag.Owner}
			res.Categories = append(res.Categories, m)
		}
		m.Readers, m.Lag, m.PendingPointers = uint32(min(lag.Readers, 1<<31)), lag.Lag.Microseconds(), lag.Pending //nolint:gosec // bounded
	}
	return res, nil
}

// lags returns how far readers are behind, of at most limit categories: those that lag most.
func (s processService) lags(limit int, prefix string) []readstream.CategoryLag {
	if s.a.parts.lags == nil || !s.a.ready.Load() {
		return nil
	}
	lags := slices.DeleteFunc(s.a.parts.lags(), func(l readstream.CategoryLag) bool { return !strings.HasPrefix(l.Category, prefix) })
	slices.SortStableFunc(lags, func(a, b readstream.CategoryLag) int { return cmp.Compare(b.Lag, a.Lag) })
	return lags[:min(len(lags), limit)]
}

// trafficMessage returns what was counted of a category, with the quotas of its tenants as they are now.
func (a *App) trafficMessage(c traffic.CategoryCounts) *scribev1.CategoryTraffic {
	var ofPrefix, ofOwner *scribev1.TenantQuota
	if a.parts.catalog != nil {
		ofPrefix, ofOwner = a.parts.catalog.Tenants().QuotasOf(c.Name, c.Owner)
	}
	return &scribev1.CategoryTraffic{
		Category: c.Name, Owner: c.Owner, QuotaBytesPerSecond: c.Quota,
		WrittenBytes: c.WrittenBytes, WrittenMessages: c.WrittenMessages, FailedMessages: c.FailedMessages, OverQuotaMessages: c.OverQuotaMessages,
		SampledMessages: c.SampledMessages, ReadBytes: c.ReadBytes, ReadPayloads: c.ReadPayloads, ReadMessages: c.ReadMessages, FailedPayloads: c.FailedPayloads,
		OverOwnerQuotaMessages: c.OverOwnerQuotaMessages, OverPrefixQuotaMessages: c.OverPrefixQuotaMessages,
		OwnerQuotaBytesPerSecond: ofOwner.GetWriteBytesPerSecond(), QuotaPrefix: ofPrefix.GetPrefix(), PrefixQuotaBytesPerSecond: ofPrefix.GetWriteBytesPerSecond(),
	}
}
