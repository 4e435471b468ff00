package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"scribe/controlplane/request"
	"scribe/internal/format/record"
	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

const (
	// maxTenantQuotas bounds the quotas of tenants, which every process has in memory, and which are one value of the store.
	maxTenantQuotas = 1000
	// maxTenantText bounds the text of a tenant: an owner or a prefix with what tells them apart.
	maxTenantText = maxOwner + len("owner=")
)

// tenantQuotas is what the store has of the quotas of tenants, for watches. One goroutine changes it; any number read it.
type tenantQuotas struct {
	mu struct {
		sync.Mutex
		// set is replaced, never changed. While it is not known, since it is damaged, it is nil, and watches are told nothing: processes keep what they have.
		set     *scribev1.TenantQuotas
		changed chan struct{} // closed and replaced with every set
	}
}

func newTenantQuotas() *tenantQuotas {
	t := &tenantQuotas{}
	t.mu.changed = make(chan struct{})
	return t
}

// read returns the set, and the channel that announces another one.
func (t *tenantQuotas) read() (*scribev1.TenantQuotas, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.set, t.mu.changed
}

func (t *tenantQuotas) replace(set *scribev1.TenantQuotas) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if proto.Equal(t.mu.set, set) {
		return
	}
	t.mu.set = set
	close(t.mu.changed)
	t.mu.changed = make(chan struct{})
}

func (t *tenantQuotas) count() int {
	set, _ := t.read()
	return len(set.GetQuotas())
}

// decodeTenantQuotas decodes the stored quotas of tenants. What this program does not understand of them, a newer one may: it is kept as it is, and told to processes as it is.
func decodeTenantQuotas(value []byte) (*scribev1.TenantQuotas, error) {
	set := new(scribev1.TenantQuotas)
	if err := proto.Unmarshal(value, set); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, tenantQuotasKey, err)
	}
	return set, nil
}

// takeTenantQuotas takes the stored quotas of tenants. While the value is damaged, those that were known before stay in force.
func (c *ControlPlane) takeTenantQuotas(value []byte) {
	set, err := decodeTenantQuotas(value)
	if err != nil {
		c.metrics.damaged.Inc()
		c.logger.Error("quotas of tenants are damaged: those that were known stay in force", "error", err)
		return
	}
	c.tenants.replace(set)
}

// loadTenantQuotas reads the quotas of tenants before the first watch, which would else tell that there are none.
func (c *ControlPlane) loadTenantQuotas(ctx context.Context) error {
	switch e, err := c.deps.Store.Get(ctx, tenantQuotasKey); {
	case err == nil:
		c.takeTenantQuotas(e.Value)
	case errors.Is(err, kv.ErrNotFound):
		c.takeTenantQuotas(nil)
	case errors.Is(err, kv.ErrCorrupt):
		c.metrics.damaged.Inc()
		c.logger.Error("quotas of tenants are damaged: processes keep those that they know", "error", err)
	default:
		return fmt.Errorf("controlplane: read the quotas of tenants: %w", err)
	}
	return nil
}

// followTenantQuotas keeps the quotas of tenants equal to the store until the control plane stops.
func (c *ControlPlane) followTenantQuotas() {
	c.followKeys(tenantQuotasKey, func(all []kv.Entry, _ uint64) {
		var value []byte
		for _, e := range all {
			if e.Key == tenantQuotasKey {
				value = e.Value
			}
		}
		c.takeTenantQuotas(value)
	}, func(b kv.EventBatch) {
		for _, e := range b.Events {
			if e.Key == tenantQuotasKey {
				c.takeTenantQuotas(e.Value)
			}
		}
	})
}

// checkTenantQuota returns the violations of a quota.
func checkTenantQuota(q *scribev1.TenantQuota) (v request.Violations) {
	checkTenant(&v, q.GetOwner(), q.GetPrefix())
	if q.GetWriteBytesPerSecond() == 0 && q.GetReadBytesPerSecond() == 0 && q.GetReadRequestsPerSecond() == 0 {
		v.Add("quota", "has no limit: set one, or remove the quota")
	}
	if m := q.GetMode(); m < scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED || m > scribev1.QuotaMode_QUOTA_MODE_SAMPLE {
		v.Add("mode", "%d is not known", m)
	}
	return v
}

// checkTenant checks whose a quota is.
func checkTenant(v *request.Violations, owner, prefix string) {
	switch {
	case (owner == "") == (prefix == ""):
		v.Add("tenant", "want an owner or a prefix, and not both")
	case owner != "":
		v.CheckText("owner", owner, maxOwner)
	case record.ValidateCategory(prefix) != nil || strings.HasPrefix(prefix, "_"):
		v.Add("prefix", "%.100q is not the beginning of the names of categories that people create", prefix)
	}
}

// changeTenantQuotas lets decide choose what the quotas become by what they are, and stores it. decide gets its own copy, in order.
func (c *ControlPlane) changeTenantQuotas(ctx context.Context, what string, decide func([]*scribev1.TenantQuota) ([]*scribev1.TenantQuota, error)) error {
	for range maxAttempts {
		e, err := c.deps.Store.Get(ctx, tenantQuotasKey)
		switch {
		case errors.Is(err, kv.ErrCorrupt):
			return damagedTenantQuotas(what, err)
		case err != nil && !errors.Is(err, kv.ErrNotFound):
			return request.ReadError(what, err)
		}
		set, err := decodeTenantQuotas(e.Value)
		if err != nil {
			c.metrics.damaged.Inc()
			return damagedTenantQuotas(what, err)
		}
		if set.Quotas, err = decide(set.GetQuotas()); err != nil {
			return err
		}
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
		if err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
		}
		if _, err = c.deps.Store.Commit(ctx, kv.Put(tenantQuotasKey, value).If(e.Revision)); err == nil {
			return nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			_, err = commitError(what, err)
			return err
		}
	}
	return errContended(what)
}

// damagedTenantQuotas returns the error for a change of quotas that can't be read. To set one anew would remove the others.
func damagedTenantQuotas(what string, err error) error {
	return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s: %w: nothing is changed, since the other quotas would be lost, and processes keep those that they know: "+
		"put the control store back, see docs/operations.md, A lost control store", what, err)
}

// findTenantQuota returns the index of a tenant's quota. It does not rely on the order, which another program may have made.
func findTenantQuota(quotas []*scribev1.TenantQuota, owner, prefix string) (at int, found bool) {
	at = slices.IndexFunc(quotas, func(q *scribev1.TenantQuota) bool { return q.GetOwner() == owner && q.GetPrefix() == prefix })
	return at, at >= 0
}

// SetTenantQuota implements rpc.ControlService.
func (c *ControlPlane) SetTenantQuota(ctx context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	q := proto.CloneOf(req.GetQuota())
	if q == nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "set quota: quota: is missing")
	}
	q.ProtoReflect().SetUnknown(nil) // this program can't check fields that it does not know
	tenant := quota.TenantText(q.GetOwner(), q.GetPrefix())
	what := "set quota of " + shorten(tenant)
	if err := checkTenantQuota(q).Err(what); err != nil {
		return nil, err
	}
	q.Mode = cmp.Or(q.GetMode(), scribev1.QuotaMode_QUOTA_MODE_BLOCK)
	err := c.changeTenantQuotas(ctx, what, func(quotas []*scribev1.TenantQuota) ([]*scribev1.TenantQuota, error) {
		if i, found := findTenantQuota(quotas, q.GetOwner(), q.GetPrefix()); found {
			quotas[i] = q
			return quotas, nil
		}
		if len(quotas) >= maxTenantQuotas {
			return nil, rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: there are quotas of %d owners and prefixes, which is the limit: remove some", what, len(quotas))
		}
		i, _ := slices.BinarySearchFunc(quotas, q, quota.CompareTenants)
		return slices.Insert(quotas, i, q), nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("quota of a tenant set", "tenant", tenant, "write_bytes_per_second", q.GetWriteBytesPerSecond(), "read_bytes_per_second", q.GetReadBytesPerSecond(),
		"read_requests_per_second", q.GetReadRequestsPerSecond(), "mode", scribev1.EnumName(q.GetMode()), "by", describeCaller(ctx))
	return &scribev1.SetTenantQuotaResponse{Quota: q}, nil
}

// RemoveTenantQuota implements rpc.ControlService.
func (c *ControlPlane) RemoveTenantQuota(ctx context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	tenant := quota.TenantText(req.GetOwner(), req.GetPrefix())
	what := "remove quota of " + shorten(tenant)
	var v request.Violations
	if checkTenant(&v, req.GetOwner(), req.GetPrefix()); len(v) > 0 {
		return nil, v.Err(what)
	}
	err := c.changeTenantQuotas(ctx, what, func(quotas []*scribev1.TenantQuota) ([]*scribev1.TenantQuota, error) {
		i, found := findTenantQuota(quotas, req.GetOwner(), req.GetPrefix())
		if !found {
			return nil, rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s: it has none: scribe quota list shows all", what)
		}
		return slices.Delete(quotas, i, i+1), nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("quota of a tenant removed", "tenant", tenant, "by", describeCaller(ctx))
	return &scribev1.RemoveTenantQuotaResponse{}, nil
}

// ListTenantQuotas implements rpc.ControlService.
func (c *ControlPlane) ListTenantQuotas(ctx context.Context, _ *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "list quotas"
	e, err := c.deps.Store.Get(ctx, tenantQuotasKey)
	if err != nil && !errors.Is(err, kv.ErrNotFound) {
		return nil, request.ReadError(what, err)
	}
	set, err := decodeTenantQuotas(e.Value)
	if err != nil {
		return nil, request.ReadError(what, err)
	}
	return &scribev1.ListTenantQuotasResponse{Quotas: set.GetQuotas()}, nil
}
