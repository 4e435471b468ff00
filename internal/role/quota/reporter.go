package quota

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"scribe/internal/base/logthrottle"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// pressingPause is the time between two reports while more than the equal share of a quota is needed.
	pressingPause = 200 * time.Millisecond
	// calmPause is the time between two reports otherwise, and after a failed one.
	calmPause = 2 * time.Second
	// leastPause is the time after a report before something that did not pass causes the next one.
	leastPause = 100 * time.Millisecond
	// reportTimeout bounds a report.
	reportTimeout = 2 * time.Second
)

// Divider divides quotas among the processes that enforce them. rpc.ControlService is one.
type Divider interface {
	ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error)
}

// Reporter tells the control plane what is wanted of a registry's quotas, and hands the leases to the registry. It is silent while no quota
// is used, and where one process enforces the quotas alone.
type Reporter struct {
	registry *Registry
	divider  Divider
	member   string
	role     scribev1.Role
	log      *slog.Logger
	trouble  logthrottle.Throttle
	// empty: the last report that was taken named no quota.
	empty bool

	done, failed atomic.Uint64
	stop         context.CancelFunc
	ended        chan struct{}
}

// StartReporter starts reporting for a registry, as a member with a role, until Stop.
func StartReporter(registry *Registry, divider Divider, member string, role scribev1.Role, log *slog.Logger) *Reporter {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Reporter{registry: registry, divider: divider, member: member, role: role, log: log, empty: true, stop: cancel, ended: make(chan struct{})}
	go r.run(ctx)
	return r
}

// Stop ends the reporter. Its leases expire by themselves.
func (r *Reporter) Stop() {
	r.stop()
	<-r.ended
}

// CountReports returns how many reports were taken, and how many failed.
func (r *Reporter) CountReports() (done, failed uint64) { return r.done.Load(), r.failed.Load() }

func (r *Reporter) run(ctx context.Context) {
	defer close(r.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	short := r.registry.Short
	last := time.Now()
	for {
		select {
		case <-timer.C:
		case <-short:
			timer.Reset(max(leastPause-time.Since(last), 0))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
		last = time.Now()
		pause := r.reportOnce(ctx)
		timer.Reset(pause)
		if short = r.registry.Short; pause == pressingPause {
			short = nil // it is short of something anyway
		}
	}
}

// reportOnce makes a report, if there is anything to say, and returns when the next one is due.
func (r *Reporter) reportOnce(ctx context.Context) time.Duration {
	if r.registry.CountSharers() == 1 {
		return calmPause
	}
	report := r.registry.CollectDemands()
	if len(report.Demands) == 0 && r.empty {
		return calmPause
	}
	req := &scribev1.ShareQuotasRequest{Member: r.member, Role: r.role, Cut: report.Cut}
	for i := range report.Demands {
		d := &report.Demands[i]
		m := &scribev1.QuotaDemand{Category: d.Category, Tenant: d.Tenant, Wanted: d.Wanted, Passed: d.Passed}
		if d.Tenant != "" { // in a field of their own, which a control plane that knows no tenants ignores
			req.Tenants = append(req.Tenants, m)
		} else {
			req.Demands = append(req.Demands, m)
		}
	}
	call, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	res, err := r.divider.ShareQuotas(call, req)
	if err != nil {
		if ctx.Err() == nil {
			r.failed.Add(1)
			r.trouble.Failed(ctx, r.log, "quotas not divided: equal shares are enforced", "role", scribev1.EnumName(r.role), "error", err)
		}
		return calmPause
	}
	r.trouble.Recovered(ctx, r.log, "quotas divided again", "role", scribev1.EnumName(r.role))
	r.done.Add(1)
	r.empty = len(report.Demands) == 0
	shares := make(map[Key]float64, len(res.GetLeases()))
	for _, l := range res.GetLeases() {
		shares[Key{Category: l.GetCategory(), Tenant: l.GetTenant()}] = l.GetShare()
	}
	r.registry.ApplyLeases(report, shares)
	if report.Pressing {
		return pressingPause
	}
	return calmPause
}
