package enforce

import (
	"cmp"
	"context"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// controlService serves what the caller may see and change of the categories.
type controlService struct {
	rpc.ControlService
	e *Enforcer
}

// CreateCategory implements rpc.ControlService. With a rule about owners a caller may create categories of that owner.
func (s controlService) CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	p, c := principal.FromContext(ctx), req.GetCategory()
	if p.Kind != principal.Member && s.e.isTrail(c.GetName()) {
		return nil, s.e.denyCategory(ctx, p, access.NotMember, describeAct(access.Manage, c.GetName()), c.GetName())
	}
	if s.e.IsFree(ctx) {
		return s.ControlService.CreateCategory(ctx, req)
	}
	set, now := s.e.rights.Set(), s.e.now()
	act := describeAct(access.Manage, c.GetName())
	if cause := set.Decide(p, access.Manage, c.GetName(), c.GetOwner(), now); cause != access.Allowed {
		return nil, s.e.denyCategory(ctx, p, s.e.orUnknown(cause), act, c.GetName())
	}
	res, err := s.ControlService.CreateCategory(ctx, req)
	byName := set.Decide(p, access.Manage, c.GetName(), "", now) == access.Allowed
	switch {
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_CATEGORY_EXISTS && !byName,
		err == nil && set.Decide(p, access.Manage, res.GetCategory().GetName(), res.GetCategory().GetOwner(), now) != access.Allowed:
		return nil, s.e.denyCategory(ctx, p, access.NoRule, act, c.GetName()) // it is another owner's
	}
	return res, err
}

// GetCategory implements rpc.ControlService.
func (s controlService) GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	if !s.e.IsFree(ctx) {
		if err := s.e.Allow(ctx, access.Visible, req.GetName()); err != nil {
			return nil, err
		}
	}
	res, err := s.ControlService.GetCategory(ctx, req)
	if err == nil {
		by := access.Permission(0)
		if req.GetForReading() {
			by = access.Read
		}
		if err := s.e.denyInapplicable(ctx, res.GetCategory(), by); err != nil {
			return nil, err
		}
		if c := s.e.seenAs(ctx, res.GetCategory(), by); c != res.GetCategory() {
			return &scribev1.GetCategoryResponse{Category: c}, nil
		}
	}
	return res, err
}

// UpdateCategory implements rpc.ControlService. Who owns a category decides who has rights to it by rules about owners, so only who
// may manage every category changes owners.
func (s controlService) UpdateCategory(ctx context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	if !s.e.IsFree(ctx) {
		if err := s.e.Allow(ctx, access.Manage, req.GetName()); err != nil {
			return nil, err
		}
		if req.Owner != nil {
			if err := s.e.AllowCell(ctx, access.Manage, "change the owner of a category"); err != nil {
				return nil, err
			}
		}
	}
	return s.ControlService.UpdateCategory(ctx, req)
}

// DeleteCategory implements rpc.ControlService.
func (s controlService) DeleteCategory(ctx context.Context, req *scribev1.DeleteCategoryRequest) (*scribev1.DeleteCategoryResponse, error) {
	if !s.e.IsFree(ctx) {
		if err := s.e.Allow(ctx, access.Manage, req.GetName()); err != nil {
			return nil, err
		}
	}
	return s.ControlService.DeleteCategory(ctx, req)
}

// ListCategories implements rpc.ControlService. It leaves out what the caller may not see, and says that there are more only if there
// are more that it may see.
func (s controlService) ListCategories(ctx context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	if !isImposed(ctx) && (s.e.IsFree(ctx) || s.e.AllowsAll(ctx) && !s.e.isLimited(ctx)) {
		return s.ControlService.ListCategories(ctx, req)
	}
	const most = 10_000 // as the protocol says
	limit := int(cmp.Or(min(req.GetLimit(), most), most))
	out := &scribev1.ListCategoriesResponse{}
	ask := &scribev1.ListCategoriesRequest{Prefix: req.GetPrefix(), After: req.GetAfter(), Names: req.GetNames(), WithoutSchemas: req.GetWithoutSchemas()}
	for {
		page, err := s.ControlService.ListCategories(ctx, ask)
		if err != nil {
			return nil, err
		}
		for _, c := range page.GetCategories() {
			ask.After = c.GetName()
			if !s.e.Sees(ctx, c) {
				continue
			}
			if len(out.GetCategories()) == limit {
				out.More = true
				return out, nil
			}
			if req.GetWithoutSchemas() {
				c = s.e.seenListed(ctx, c)
			} else {
				c = s.e.seenAs(ctx, c, 0)
			}
			out.Categories = append(out.Categories, c)
		}
		if out.Named = page.GetNamed(); !page.GetMore() {
			return out, nil
		}
	}
}

// SetTenantQuota implements rpc.ControlService. A quota bounds what those who manage categories may give themselves, so only who may manage every
// category sets it.
func (s controlService) SetTenantQuota(ctx context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	if err := s.e.allowTenantQuotas(ctx); err != nil {
		return nil, err
	}
	return s.ControlService.SetTenantQuota(ctx, req)
}

// RemoveTenantQuota implements rpc.ControlService.
func (s controlService) RemoveTenantQuota(ctx context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	if err := s.e.allowTenantQuotas(ctx); err != nil {
		return nil, err
	}
	return s.ControlService.RemoveTenantQuota(ctx, req)
}

func (e *Enforcer) allowTenantQuotas(ctx context.Context) error {
	if e.IsFree(ctx) {
		return nil
	}
	return e.AllowCell(ctx, access.Manage, "change the quotas of owners and prefixes")
}

// ListTenantQuotas implements rpc.ControlService. It leaves out tenants of whose categories the caller may not see all.
func (s controlService) ListTenantQuotas(ctx context.Context, req *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	res, err := s.ControlService.ListTenantQuotas(ctx, req)
	if err != nil || s.e.IsFree(ctx) {
		return res, err
	}
	set, p, now := s.e.rights.Set(), principal.FromContext(ctx), s.e.now()
	seen := &scribev1.ListTenantQuotasResponse{}
	for _, q := range res.GetQuotas() {
		name := q.GetPrefix()
		if name != "" {
			name += "*" // no category has such a name: only rules for prefixes match it, not one for the category with the name of the prefix
		}
		if set.Decide(p, access.Visible, name, q.GetOwner(), now) == access.Allowed {
			seen.Quotas = append(seen.Quotas, q)
		}
	}
	return seen, nil
}

// AllowsAll reports whether the caller of ctx sees every category.
func (e *Enforcer) AllowsAll(ctx context.Context) bool {
	return e.rights.Set().Decide(principal.FromContext(ctx), access.Visible, "", "", e.now()) == access.Allowed
}

// isLimited reports whether the caller of ctx may read some category in part only.
func (e *Enforcer) isLimited(ctx context.Context) bool {
	return e.rights.Set().HasLimits(principal.FromContext(ctx), e.now())
}

// GetStatus implements rpc.ControlService. How many categories there are is for those who see all of them, or look after the cell. Where members are, and
// what they offer, every client must know.
func (s controlService) GetStatus(ctx context.Context, req *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	res, err := s.ControlService.GetStatus(ctx, req)
	if err == nil && !s.e.AllowsAll(ctx) && !s.e.MayMonitor(ctx) {
		res.Categories, res.RetirementsPending, res.Leadership = 0, 0, nil
		res.KnownMembers, res.KnownCategories = nil, 0
	}
	return res, err
}

// Services returns services that let pass what the callers of each may do. Those that are for members or operators alone, which Protect
// sees to, are unchanged, but where operators may do less than members.
func (e *Enforcer) Services(s rpc.Services) rpc.Services {
	if s.Write != nil {
		s.Write = writeService{s.Write, e}
	}
	if s.ReadStream != nil {
		s.ReadStream = readStreamService{s.ReadStream, e}
	}
	if s.ReadProxy != nil {
		s.ReadProxy = readProxyService{s.ReadProxy, e}
	}
	if s.Control != nil {
		s.Control = controlService{s.Control, e}
	}
	if s.Metalog != nil {
		s.Metalog = metalogService{s.Metalog, e}
	}
	if s.Access != nil {
		s.Access = accessService{s.Access, e}
	}
	if s.Group != nil {
		s.Group = groupService{s.Group, e}
	}
	return s
}
