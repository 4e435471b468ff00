package catalog

import (
	"slices"

	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
)

// Tenants returns the quotas of tenants. It takes no lock.
func (v *View) Tenants() *quota.Tenants { return v.tenants.Load() }

// applyTenants takes the quotas of tenants that a message has, and reports whether it has any. v.mu is held.
func (v *View) applyTenants(msg *scribev1.WatchCategoriesResponse) (changed bool) {
	if msg.GetTenantQuotas() == nil {
		return false
	}
	v.tenants.Store(quota.NewTenants(msg.GetTenantQuotas().GetQuotas()))
	return true
}

// tenantQuotas returns the quotas of tenants as the file keeps them; nil if there are none.
func (v *View) tenantQuotas() *scribev1.TenantQuotas {
	quotas := v.Tenants().Quotas()
	if len(quotas) == 0 {
		return nil
	}
	slices.SortFunc(quotas, quota.CompareTenants)
	return &scribev1.TenantQuotas{Quotas: quotas}
}
