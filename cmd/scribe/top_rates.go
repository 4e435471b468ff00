package main

import (
	"cmp"
	"maps"
	"slices"

	scribev1 "scribe/proto/scribe/v1"
)

// topRow is what went through a cell of a category, or of an owner's categories. Rates are a second.
type topRow struct {
	Category        string  `json:"category,omitempty"`
	Owner           string  `json:"owner,omitempty"`
	WrittenBytes    float64 `json:"written_bytes_per_second"`
	WrittenMessages float64 `json:"written_messages_per_second"`
	ReadBytes       float64 `json:"read_bytes_per_second"`
	ReadMessages    float64 `json:"read_messages_per_second"`
	// Errors are messages that were not stored, and payloads that could not be served.
	Errors    float64 `json:"errors_per_second"`
	OverQuota float64 `json:"over_quota_messages_per_second"`
	Sampled   float64 `json:"sampled_messages_per_second"`
	// Quota is in bytes a second, 0 = none; QuotaUsed is the part of it that was written.
	Quota     float64 `json:"quota_bytes_per_second,omitempty"`
	QuotaUsed float64 `json:"quota_used,omitempty"`
	Readers   uint32  `json:"readers"`
	Lag       float64 `json:"lag_seconds"`
	Pending   uint64  `json:"pending_pointers"`
}

// topView is one measurement.
type topView struct {
	by string
	// Seconds is how far apart the two looks were.
	Seconds    float64  `json:"interval_seconds"`
	Categories []topRow `json:"categories"`
	// Rest are the categories that are not among them, Total are all.
	Rest  topRow `json:"rest"`
	Total topRow `json:"total"`
	// Failed says which processes are missing from the sums.
	Failed []string `json:"failed,omitempty"`
}

// topOrders are the values of --sort: rows with more come first.
var topOrders = map[string]func(*topRow) float64{
	"bytes":    func(r *topRow) float64 { return r.WrittenBytes + r.ReadBytes },
	"in":       func(r *topRow) float64 { return r.WrittenBytes },
	"out":      func(r *topRow) float64 { return r.ReadBytes },
	"messages": func(r *topRow) float64 { return r.WrittenMessages + r.ReadMessages },
	"errors":   func(r *topRow) float64 { return r.Errors + r.Sampled },
	"quota":    func(r *topRow) float64 { return r.QuotaUsed },
	"lag":      func(r *topRow) float64 { return r.Lag },
	"readers":  func(r *topRow) float64 { return float64(r.Readers) },
}

// sortNames are the values of --sort and "name".
func sortNames() []string { return append(slices.Sorted(maps.Keys(topOrders)), "name") }

// addRow adds the rates of a row; of lags, the larger counts.
func (r *topRow) addRow(o *topRow) {
	r.WrittenBytes += o.WrittenBytes
	r.WrittenMessages += o.WrittenMessages
	r.ReadBytes += o.ReadBytes
	r.ReadMessages += o.ReadMessages
	r.Errors += o.Errors
	r.OverQuota += o.OverQuota
	r.Sampled += o.Sampled
	r.Quota += o.Quota
	r.Readers += o.Readers
	r.Lag = max(r.Lag, o.Lag)
	r.Pending += o.Pending
}

// ratesOf returns what was counted of a category between two looks, a second. Counts that are lower than before began again.
func ratesOf(before, after *scribev1.CategoryTraffic, seconds float64) topRow {
	rate := func(count func(*scribev1.CategoryTraffic) uint64) float64 {
		old, now := count(before), count(after)
		if now < old {
			old = 0
		}
		return float64(now-old) / seconds
	}
	return topRow{
		Category: after.GetCategory(), Owner: after.GetOwner(),
		WrittenBytes: rate((*scribev1.CategoryTraffic).GetWrittenBytes), WrittenMessages: rate((*scribev1.CategoryTraffic).GetWrittenMessages),
		ReadBytes: rate((*scribev1.CategoryTraffic).GetReadBytes), ReadMessages: rate((*scribev1.CategoryTraffic).GetReadMessages),
		Errors:    rate((*scribev1.CategoryTraffic).GetFailedMessages) + rate((*scribev1.CategoryTraffic).GetFailedPayloads),
		OverQuota: rate((*scribev1.CategoryTraffic).GetOverQuotaMessages), Sampled: rate((*scribev1.CategoryTraffic).GetSampledMessages),
		Readers: after.GetReaders(), Lag: float64(after.GetLag()) / 1e6, Pending: after.GetPendingPointers(),
	}
}

// compareSamples returns the rates between two looks. A process that began in between, or again, counts from its beginning; one that was not seen
// before does not count yet.
func (f *topFlags) compareSamples(before, after *trafficSample) *topView {
	v := &topView{by: "CATEGORY", Seconds: after.at.Sub(before.at).Seconds(), Rest: topRow{Category: "(rest)"}, Total: topRow{Category: "(total)"}, Categories: []topRow{}}
	rows := map[string]*topRow{}
	quotas := map[string]float64{} // by category: each proxy names the whole quota
	for id, now := range after.processes {
		old := before.processes[id]
		if old == nil {
			continue
		}
		if old.GetStartedAt() != now.GetStartedAt() {
			old = &scribev1.GetTrafficResponse{}
		}
		known := make(map[string]*scribev1.CategoryTraffic, len(old.GetCategories()))
		for _, c := range old.GetCategories() {
			known[c.GetCategory()] = c
		}
		for _, c := range now.GetCategories() {
			row := ratesOf(known[c.GetCategory()], c, v.Seconds)
			if rows[row.Category] == nil {
				rows[row.Category] = &topRow{Category: row.Category, Owner: row.Owner}
			}
			rows[row.Category].addRow(&row)
			quotas[row.Category] = max(quotas[row.Category], float64(c.GetQuotaBytesPerSecond()))
		}
		rest := ratesOf(old.GetRest(), now.GetRest(), v.Seconds)
		v.Rest.addRow(&rest)
	}
	for name, row := range rows {
		row.Quota = quotas[name]
		if f.owner != "" && row.Owner != f.owner {
			delete(rows, name)
		}
	}
	if f.owner != "" {
		v.Rest = topRow{Category: v.Rest.Category} // whose they are is not known
	}
	if f.by == "owner" {
		v.by, rows = "OWNER", sumByOwner(rows)
	}
	v.takeRows(f, rows)
	for _, err := range after.failed {
		v.Failed = append(v.Failed, err.Error())
	}
	return v
}

// sumByOwner returns a row for each owner. Of quotas, the use of that counts which is used most.
func sumByOwner(rows map[string]*topRow) map[string]*topRow {
	owners := map[string]*topRow{}
	for _, row := range rows {
		owner := cmp.Or(row.Owner, "(nobody)")
		if owners[owner] == nil {
			owners[owner] = &topRow{Owner: owner}
		}
		sum := owners[owner]
		sum.addRow(row)
		if sum.Quota = 0; row.Quota > 0 {
			sum.QuotaUsed = max(sum.QuotaUsed, row.WrittenBytes/row.Quota)
		}
	}
	return owners
}

// takeRows sorts the rows, and adds those that are too many to the rest.
func (v *topView) takeRows(f *topFlags, rows map[string]*topRow) {
	all := make([]*topRow, 0, len(rows))
	for _, row := range rows {
		if row.Quota > 0 {
			row.QuotaUsed = row.WrittenBytes / row.Quota
		}
		v.Total.addRow(row)
		all = append(all, row)
	}
	v.Total.addRow(&v.Rest)
	order := topOrders[f.sort]
	slices.SortFunc(all, func(a, b *topRow) int {
		byName := cmp.Or(cmp.Compare(a.Category, b.Category), cmp.Compare(a.Owner, b.Owner))
		if order == nil {
			return byName
		}
		return cmp.Or(cmp.Compare(order(b), order(a)), byName)
	})
	for i, row := range all {
		if f.rows > 0 && i >= f.rows {
			v.Rest.addRow(row)
			continue
		}
		v.Categories = append(v.Categories, *row)
	}
	v.Rest.Quota, v.Total.Quota = 0, 0 // of some it is none
}
