package app

import (
	"context"
	"log/slog"

	"scribe/internal/base/metrics"
	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
)

// startQuotaReports tells the control plane what a role wants of the quotas that it enforces, and leases shares of them (docs/adr/0058).
func (a *App) startQuotaReports(registry *quota.Registry, role scribev1.Role, prefix string) error {
	r := quota.StartReporter(registry, a.parts.control, a.id, role, a.log.With(slog.String("member", a.id)))
	set := metrics.NewSet(prefix)
	set.CounterFunc("quota_reports_total", "Reports of what categories want of their quotas that the control plane answered.", func() float64 {
		done, _ := r.CountReports()
		return float64(done)
	})
	set.CounterFunc("quota_report_failures_total", "Reports that it did not answer: equal shares are enforced meanwhile.", func() float64 {
		_, failed := r.CountReports()
		return float64(failed)
	})
	if err := set.Register(a.registry); err != nil {
		r.Stop()
		return err
	}
	a.onStop("quota reports", func(context.Context) error {
		r.Stop()
		set.Unregister()
		return nil
	})
	return nil
}
