package survey

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// RowChoice says which rows of a measurement are wanted, and in which order.
type RowChoice struct {
	// Sort is one of SortNames, By is one of ByNames.
	Sort, By string
	// Owner keeps the categories of one owner; empty = all.
	Owner string
	// Rows bounds the rows; 0 = all.
	Rows int
}

// ByNames are what rows can be of.
var ByNames = []string{"category", "owner", "prefix"}

// TrafficRow is what went through a cell of a category, or of an owner's categories, or of those under the quota of a prefix. Rates are a second.
type TrafficRow struct {
	Category        string  `json:"category,omitempty"`
	Owner           string  `json:"owner,omitempty"`
	Prefix          string  `json:"prefix,omitempty"`
	WrittenBytes    float64 `json:"written_bytes_per_second"`
	WrittenMessages float64 `json:"written_messages_per_second"`
	ReadBytes       float64 `json:"read_bytes_per_second"`
	ReadMessages    float64 `json:"read_messages_per_second"`
	// Errors are messages that were not stored, and payloads that could not be served.
	Errors    float64 `json:"errors_per_second"`
	OverQuota float64 `json:"over_quota_messages_per_second"`
	// OverOwner and OverPrefix are those of OverQuota that were over the quota of the owner, or of a prefix of the name.
	OverOwner  float64 `json:"over_owner_quota_messages_per_second,omitempty"`
	OverPrefix float64 `json:"over_prefix_quota_messages_per_second,omitempty"`
	Sampled    float64 `json:"sampled_messages_per_second"`
	// Quota is in bytes a second, 0 = none; QuotaUsed is the part of it that was written.
	Quota     float64 `json:"quota_bytes_per_second,omitempty"`
	QuotaUsed float64 `json:"quota_used,omitempty"`
	Readers   uint32  `json:"readers"`
	Lag       float64 `json:"lag_seconds"`
	Pending   uint64  `json:"pending_pointers"`
	// ownerQuota and prefixQuota are those that a category is under besides its own.
	ownerQuota, prefixQuota float64
}

// TrafficView is one measurement.
type TrafficView struct {
	// By is the heading of the first column: CATEGORY, OWNER or PREFIX.
	By string `json:"-"`
	// Seconds is how far apart the two looks were.
	Seconds    float64      `json:"interval_seconds"`
	Categories []TrafficRow `json:"categories"`
	// Rest are the categories that are not among them, Total are all.
	Rest  TrafficRow `json:"rest"`
	Total TrafficRow `json:"total"`
	// Failed says which processes are missing from the sums.
	Failed []string `json:"failed,omitempty"`
}

// orders are the values of --sort: rows with more come first.
var orders = map[string]func(*TrafficRow) float64{
	"bytes":    func(r *TrafficRow) float64 { return r.WrittenBytes + r.ReadBytes },
	"in":       func(r *TrafficRow) float64 { return r.WrittenBytes },
	"out":      func(r *TrafficRow) float64 { return r.ReadBytes },
	"messages": func(r *TrafficRow) float64 { return r.WrittenMessages + r.ReadMessages },
	"errors":   func(r *TrafficRow) float64 { return r.Errors + r.Sampled },
	"quota":    func(r *TrafficRow) float64 { return r.QuotaUsed },
	"lag":      func(r *TrafficRow) float64 { return r.Lag },
	"readers":  func(r *TrafficRow) float64 { return float64(r.Readers) },
}

// SortNames are the values of --sort and "name".
func SortNames() []string { return append(slices.Sorted(maps.Keys(orders)), "name") }

// addRow adds the rates of a row; of lags, the larger counts.
func (r *TrafficRow) addRow(o *TrafficRow) {
	r.WrittenBytes += o.WrittenBytes
	r.WrittenMessages += o.WrittenMessages
	r.ReadBytes += o.ReadBytes
	r.ReadMessages += o.ReadMessages
	r.Errors += o.Errors
	r.OverQuota += o.OverQuota
	r.OverOwner += o.OverOwner
	r.OverPrefix += o.OverPrefix
	r.Sampled += o.Sampled
	r.Quota += o.Quota
	r.Readers += o.Readers
	r.Lag = max(r.Lag, o.Lag)
	r.Pending += o.Pending
}

// ratesOf returns what was counted of a category between two looks, a second. Counts that are lower than before began again.
func ratesOf(before, after *scribev1.CategoryTraffic, seconds float64) TrafficRow {
	rate := func(count func(*scribev1.CategoryTraffic) uint64) float64 {
		old, now := count(before), count(after)
		if now < old {
			old = 0
		}
		return float64(now-old) / seconds
	}
	return TrafficRow{
		Category: after.GetCategory(), Owner: after.GetOwner(),
		WrittenBytes: rate((*scribev1.CategoryTraffic).GetWrittenBytes), WrittenMessages: rate((*scribev1.CategoryTraffic).GetWrittenMessages),
		ReadBytes: rate((*scribev1.CategoryTraffic).GetReadBytes), ReadMessages: rate((*scribev1.CategoryTraffic).GetReadMessages),
		Errors:    rate((*scribev1.CategoryTraffic).GetFailedMessages) + rate((*scribev1.CategoryTraffic).GetFailedPayloads),
		OverOwner: rate((*scribev1.CategoryTraffic).GetOverOwnerQuotaMessages), OverPrefix: rate((*scribev1.CategoryTraffic).GetOverPrefixQuotaMessages),
		OverQuota: rate((*scribev1.CategoryTraffic).GetOverQuotaMessages), Sampled: rate((*scribev1.CategoryTraffic).GetSampledMessages),
		Readers: after.GetReaders(), Lag: float64(after.GetLag()) / 1e6, Pending: after.GetPendingPointers(),
	}
}

// CompareSamples returns the rates between two looks. A process that began in between, or again, counts from its beginning; one that was not seen
// before does not count yet.
func (f *RowChoice) CompareSamples(before, after *TrafficSample) *TrafficView {
	v := &TrafficView{By: "CATEGORY", Seconds: after.At.Sub(before.At).Seconds(), Rest: TrafficRow{Category: "(rest)"}, Total: TrafficRow{Category: "(total)"}, Categories: []TrafficRow{}}
	rows := map[string]*TrafficRow{}
	quotas := map[string]float64{} // by category: each proxy names the whole quota
	for id, now := range after.Processes {
		old := before.Processes[id]
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
				rows[row.Category] = &TrafficRow{Category: row.Category, Owner: row.Owner}
			}
			rows[row.Category].addRow(&row)
			quotas[row.Category] = max(quotas[row.Category], float64(c.GetQuotaBytesPerSecond()))
			sum := rows[row.Category]
			sum.ownerQuota, sum.prefixQuota = max(sum.ownerQuota, float64(c.GetOwnerQuotaBytesPerSecond())), max(sum.prefixQuota, float64(c.GetPrefixQuotaBytesPerSecond()))
			sum.Prefix = cmp.Or(sum.Prefix, c.GetQuotaPrefix())
		}
		rest := ratesOf(old.GetRest(), now.GetRest(), v.Seconds)
		v.Rest.addRow(&rest)
	}
	for name, row := range rows {
		row.Quota = quotas[name]
		if f.Owner != "" && row.Owner != f.Owner {
			delete(rows, name)
		}
	}
	if f.Owner != "" {
		v.Rest = TrafficRow{Category: v.Rest.Category} // whose they are is not known
	}
	switch f.By {
	case "owner":
		v.By, rows = "OWNER", sumRows(rows, func(row *TrafficRow) (TrafficRow, float64) {
			return TrafficRow{Owner: cmp.Or(row.Owner, "(nobody)")}, row.ownerQuota
		})
	case "prefix":
		v.By, rows = "PREFIX", sumRows(rows, func(row *TrafficRow) (TrafficRow, float64) {
			return TrafficRow{Prefix: cmp.Or(row.Prefix, "(no quota)")}, row.prefixQuota
		})
	}
	v.takeRows(f, rows)
	for _, err := range after.Failed {
		v.Failed = append(v.Failed, err.Error())
	}
	return v
}

// sumRows returns a row for each tenant: tenantOf returns a row that names the tenant of a category, and the tenant's quota. Where it has none, the use
// of that quota of a category counts which is used most.
func sumRows(rows map[string]*TrafficRow, tenantOf func(*TrafficRow) (TrafficRow, float64)) map[string]*TrafficRow {
	sums := map[string]*TrafficRow{}
	for _, row := range rows {
		tenant, quota := tenantOf(row)
		name := cmp.Or(tenant.Owner, tenant.Prefix)
		if sums[name] == nil {
			sums[name] = &tenant
		}
		sum := sums[name]
		before := sum.Quota
		sum.addRow(row)
		if sum.Quota = max(before, quota); row.Quota > 0 {
			sum.QuotaUsed = max(sum.QuotaUsed, row.WrittenBytes/row.Quota)
		}
	}
	return sums
}

// takeRows sorts the rows, and adds those that are too many to the rest.
func (v *TrafficView) takeRows(f *RowChoice, rows map[string]*TrafficRow) {
	all := make([]*TrafficRow, 0, len(rows))
	for _, row := range rows {
		if row.Quota > 0 {
			row.QuotaUsed = row.WrittenBytes / row.Quota
		}
		v.Total.addRow(row)
		all = append(all, row)
	}
	v.Total.addRow(&v.Rest)
	order := orders[f.Sort]
	slices.SortFunc(all, func(a, b *TrafficRow) int {
		byName := cmp.Or(cmp.Compare(a.Category, b.Category), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Prefix, b.Prefix))
		if order == nil {
			return byName
		}
		return cmp.Or(cmp.Compare(order(b), order(a)), byName)
	})
	for i, row := range all {
		if f.Rows > 0 && i >= f.Rows {
			v.Rest.addRow(row)
			continue
		}
		v.Categories = append(v.Categories, *row)
	}
	v.Rest.Quota, v.Total.Quota = 0, 0 // of some it is none
}

// TrafficSample is what the processes of a cell have counted up to a moment.
type TrafficSample struct {
	At        time.Time
	Processes map[string]*scribev1.GetTrafficResponse // by member id
	Failed    []error
}

// trafficRoles count traffic, or know how far readers are.
var trafficRoles = []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_READSTREAM}

// ErrNoneCounts says that no member of a cell counts traffic.
var ErrNoneCounts = errors.New("the cell has no write proxy and no read proxy")

// errNobodyKnown says that nobody can be asked.
var errNobodyKnown = errors.New("the control plane can't be reached, and this process has known no members of the cell: see scribe status")

// SampleCell asks every member that counts of a cell whose process has told its status.
func SampleCell(ctx context.Context, t *rpc.Transport, st *scribev1.GetStatusResponse) (*TrafficSample, error) {
	members, away := membersOf(st)
	if away && len(members) == 0 {
		return nil, errNobodyKnown
	}
	return SampleTraffic(ctx, t, members, "")
}

// SampleTraffic asks every member that counts.
func SampleTraffic(ctx context.Context, t *rpc.Transport, members []*scribev1.Member, prefix string) (*TrafficSample, error) {
	asked := slices.DeleteFunc(slices.Clone(members), func(m *scribev1.Member) bool {
		return m.GetUrl() == "" || !slices.ContainsFunc(trafficRoles, func(r scribev1.Role) bool { return slices.Contains(m.GetRoles(), r) })
	})
	answers, failed := make([]*scribev1.GetTrafficResponse, len(asked)), make([]error, len(asked))
	var group errgroup.Group
	group.SetLimit(membersAtOnce)
	for i, m := range asked {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, healthTimeout)
			defer cancel()
			answers[i], failed[i] = rpc.NewProcessClient(t, m.GetUrl()).GetTraffic(ctx, &scribev1.GetTrafficRequest{Prefix: prefix})
			return nil
		})
	}
	_ = group.Wait() // it has no errors
	s := &TrafficSample{At: time.Now(), Processes: map[string]*scribev1.GetTrafficResponse{}}
	for i, m := range asked {
		if failed[i] != nil {
			s.Failed = append(s.Failed, fmt.Errorf("%s at %s does not answer: %s", m.GetId(), m.GetUrl(), rpc.Message(failed[i])))
			continue
		}
		s.Processes[m.GetId()] = answers[i]
	}
	if len(asked) == 0 {
		return nil, ErrNoneCounts
	}
	return s, nil
}
