package controlplane

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"scribe/controlplane/quotashare"
	"scribe/controlplane/request"
	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// maxWanted bounds a demand: nobody wants more than a million times the quota.
const maxWanted = 1e6

// quotaDriver divides quotas while this instance leads.
type quotaDriver struct {
	begin time.Time

	mu struct {
		sync.Mutex
		divider *quotashare.Divider
		// list is the membership that sharers were counted in.
		list    []*scribev1.Member
		sharers map[scribev1.Role]quotashare.Sharers
		members map[string]bool
	}
}

func newQuotas(now time.Time) *quotaDriver {
	q := &quotaDriver{begin: now}
	q.mu.divider = quotashare.New(quota.LeaseTime)
	return q
}

// restart forgets what processes want: they repeat it.
func (q *quotaDriver) restart() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.divider.Restart()
}

func (q *quotaDriver) countDivided() (quotas int, divisions uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.divider.CountDivided()
}

// takeReport returns the leases of a member. Who is not a member, as after a restart of the control plane, leases nothing.
func (q *quotaDriver) takeReport(r quotashare.Report, list []*scribev1.Member) []quotashare.Demand {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(list) != len(q.mu.list) || len(list) > 0 && &list[0] != &q.mu.list[0] {
		q.countSharers(list)
	}
	if !q.mu.members[r.Member] {
		return nil
	}
	return q.mu.divider.TakeReport(time.Since(q.begin), r, q.mu.sharers[scribev1.Role(r.Role)])
}

// countSharers counts who enforces quotas. q.mu is held.
func (q *quotaDriver) countSharers(list []*scribev1.Member) {
	q.mu.list, q.mu.sharers, q.mu.members = list, map[scribev1.Role]quotashare.Sharers{}, make(map[string]bool, len(list))
	for _, m := range list {
		q.mu.members[m.GetId()] = true
		for _, role := range quotaRoles {
			if s := q.mu.sharers[role]; slices.Contains(m.GetRoles(), role) {
				s.All++
				if !m.GetSharesQuotas() {
					s.Mute++
				}
				q.mu.sharers[role] = s
			}
		}
	}
}

// quotaRoles are the roles that enforce quotas.
var quotaRoles = []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_READPROXY}

// ShareQuotas implements rpc.ControlService.
func (c *ControlPlane) ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "share quotas"
	var v request.Violations
	if req.GetMember() == "" {
		v.Add("member", "is empty")
	}
	v.CheckText("member", req.GetMember(), maxMemberID)
	if !slices.Contains(quotaRoles, req.GetRole()) {
		v.Add("role", "%d enforces no quotas", req.GetRole())
	}
	report := quotashare.Report{Member: req.GetMember(), Role: int32(req.GetRole()), Cut: req.GetCut()}
	if n := len(req.GetDemands()) + len(req.GetTenants()); n > quota.MaxDemands {
		v.Add("demands", "%d of them, the limit is %d", n, quota.MaxDemands)
	} else {
		report.Demands = append(readDemands(&v, req.GetDemands()), readDemands(&v, req.GetTenants())...)
		slices.SortStableFunc(report.Demands, func(a, b quotashare.Demand) int { return cmp.Compare(b.Wanted, a.Wanted) })
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	return serveLeading(ctx, c, what, req, rpc.ControlService.ShareQuotas, func(context.Context, *heldTerm) (*scribev1.ShareQuotasResponse, error) {
		c.metrics.quotaReports.Inc()
		list, _ := c.members.watchList()
		leases := c.quotas.takeReport(report, list)
		res := &scribev1.ShareQuotasResponse{Leases: make([]*scribev1.QuotaLease, len(leases))}
		for i, l := range leases {
			res.Leases[i] = &scribev1.QuotaLease{Category: l.Category, Tenant: l.Tenant, Share: l.Wanted}
		}
		return res, nil
	})
}

// readDemands returns the demands of a request, and adds the first violation.
func readDemands(v *request.Violations, demands []*scribev1.QuotaDemand) []quotashare.Demand {
	out := make([]quotashare.Demand, 0, len(demands))
	seen := make(map[quota.Key]bool, len(demands))
	for _, d := range demands {
		valid := func(x float64) bool { return x >= 0 && !math.IsInf(x, 0) } // false for NaN
		key := quota.Key{Category: d.GetCategory(), Tenant: d.GetTenant()}
		v.CheckText("demands", key.Tenant, maxTenantText)
		if (key.Category == 0) == (key.Tenant == "") || seen[key] || !valid(d.GetWanted()) || !valid(d.GetPassed()) {
			v.Add("demands", "category %d or tenant %.40q, wanted %v, passed %v: listed twice or invalid", key.Category, key.Tenant, d.GetWanted(), d.GetPassed())
			return nil
		}
		seen[key] = true
		out = append(out, quotashare.Demand{Key: key, Wanted: min(d.GetWanted(), maxWanted), Passed: min(d.GetPassed(), maxWanted)})
	}
	return out
}
