package enforce

import (
	"context"
	"slices"
	"strings"
	"testing"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// plane has the categories of a cell, by name.
type plane struct {
	rpc.ControlService
	list []*scribev1.Category
	// page is how many a page has at most.
	page  int
	calls []string
}

func (p *plane) find(name string) *scribev1.Category {
	for _, c := range p.list {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

func (p *plane) CreateCategory(_ context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	p.calls = append(p.calls, "create")
	if c := p.find(req.GetCategory().GetName()); c != nil && req.GetIfNotExists() {
		return &scribev1.CreateCategoryResponse{Category: c}, nil
	} else if c != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_CATEGORY_EXISTS, "it exists")
	}
	return &scribev1.CreateCategoryResponse{Category: req.GetCategory()}, nil
}

func (p *plane) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	if c := p.find(req.GetName()); c != nil {
		return &scribev1.GetCategoryResponse{Category: c}, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "it does not exist")
}

func (p *plane) UpdateCategory(context.Context, *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	p.calls = append(p.calls, "update")
	return &scribev1.UpdateCategoryResponse{}, nil
}

func (p *plane) DeleteCategory(context.Context, *scribev1.DeleteCategoryRequest) (*scribev1.DeleteCategoryResponse, error) {
	p.calls = append(p.calls, "delete")
	return &scribev1.DeleteCategoryResponse{}, nil
}

func (p *plane) ListCategories(_ context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	res := &scribev1.ListCategoriesResponse{}
	for _, c := range p.list {
		switch {
		case c.GetName() <= req.GetAfter() || !strings.HasPrefix(c.GetName(), req.GetPrefix()):
		case len(req.GetNames()) > 0 && !slices.Contains(req.GetNames(), c.GetName()):
		case len(res.GetCategories()) == p.page:
			res.More = true
			return res, nil
		default:
			res.Categories = append(res.Categories, c)
		}
	}
	return res, nil
}

func (p *plane) SetTenantQuota(_ context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	p.calls = append(p.calls, "set quota")
	return &scribev1.SetTenantQuotaResponse{Quota: req.GetQuota()}, nil
}

func (p *plane) RemoveTenantQuota(context.Context, *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	p.calls = append(p.calls, "remove quota")
	return &scribev1.RemoveTenantQuotaResponse{}, nil
}

func (p *plane) ListTenantQuotas(context.Context, *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	return &scribev1.ListTenantQuotasResponse{Quotas: []*scribev1.TenantQuota{{Owner: "shop"}, {Owner: "team"}, {Prefix: "a."}, {Prefix: "web."}, {Prefix: "web.access"}}}, nil
}

func (p *plane) GetStatus(context.Context, *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	return &scribev1.GetStatusResponse{Categories: 7, Members: []*scribev1.Member{{Id: "m"}}}, nil
}

func namesOf(list []*scribev1.Category) string {
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.GetName()
	}
	return strings.Join(names, " ")
}

// TestListCategories: what one may not see is neither listed nor told of by the paging.
func TestListCategories(t *testing.T) {
	e, _ := newEnforcer(t, nil, "alice read:a.* write:owner=team", "root manage:*", "none read:x")
	p := &plane{page: 2}
	for _, name := range []string{"a.1", "b.1", "b.2", "b.3", "a.2", "c.1", "c.2", "z.1"} {
		p.list = append(p.list, &scribev1.Category{Name: name})
	}
	slices.SortFunc(p.list, func(a, b *scribev1.Category) int { return strings.Compare(a.GetName(), b.GetName()) })
	p.find("c.1").Owner = "team"
	s := e.Services(rpc.Services{Control: p}).Control
	list := func(who string, req *scribev1.ListCategoriesRequest) (string, bool) {
		res, err := s.ListCategories(as(who), req)
		if err != nil {
			t.Fatal(err)
		}
		return namesOf(res.GetCategories()), res.GetMore()
	}
	for _, c := range []struct {
		who  string
		req  *scribev1.ListCategoriesRequest
		want string
		more bool
	}{
		{"alice", &scribev1.ListCategoriesRequest{}, "a.1 a.2 c.1", false},
		{"alice", &scribev1.ListCategoriesRequest{Limit: 2}, "a.1 a.2", true},
		{"alice", &scribev1.ListCategoriesRequest{Limit: 3}, "a.1 a.2 c.1", false},
		{"alice", &scribev1.ListCategoriesRequest{After: "a.2", Limit: 1}, "c.1", false},
		{"alice", &scribev1.ListCategoriesRequest{Names: []string{"a.1", "b.1"}}, "a.1", false},
		{"none", &scribev1.ListCategoriesRequest{}, "", false},
		{"root", &scribev1.ListCategoriesRequest{}, "a.1 a.2", true},
	} {
		if got, more := list(c.who, c.req); got != c.want || more != c.more {
			t.Errorf("%s, %v: %q, more %v; want %q, %v", c.who, c.req, got, more, c.want, c.more)
		}
	}
}

func TestCategoryCalls(t *testing.T) {
	c := &categories{owners: map[string]string{"a.1": "", "hidden": "other", "mine": "team"}}
	e, _ := newEnforcer(t, c, "alice manage:a.*", "team manage:owner=team", "reader read:a.1", "root manage:*")
	p := &plane{page: 10, list: []*scribev1.Category{{Name: "a.1"}, {Name: "hidden", Owner: "other"}, {Name: "mine", Owner: "team"}}}
	s := e.Services(rpc.Services{Control: p}).Control
	create := func(who, name, owner string, ifNotExists bool) error {
		_, err := s.CreateCategory(as(who), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: name, Owner: owner}, IfNotExists: ifNotExists})
		return err
	}
	const exists = scribev1.Reason_REASON_CATEGORY_EXISTS
	for _, call := range []struct {
		who, name, owner string
		ifNotExists      bool
		want             scribev1.Reason
	}{
		{"alice", "a.2", "", false, 0},
		{"alice", "a.1", "", false, exists},
		{"alice", "b", "", false, denied},
		{"team", "b", "team", false, 0},
		{"team", "b", "other", false, denied},
		{"team", "b", "", false, denied},
		// Names are one space, but a caller learns nothing of another owner's category.
		{"team", "hidden", "team", false, denied},
		{"team", "hidden", "team", true, denied},
		{"team", "mine", "team", true, 0},
		{"reader", "a.1", "", false, denied},
	} {
		wantReason(t, create(call.who, call.name, call.owner, call.ifNotExists), call.want)
	}
	p.calls = nil
	get := func(who, name string) error {
		_, err := s.GetCategory(as(who), &scribev1.GetCategoryRequest{Name: name})
		return err
	}
	wantReason(t, get("reader", "a.1"), 0)
	wantReason(t, get("team", "mine"), 0)
	wantReason(t, get("alice", "a.9"), scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	hidden, missing := get("reader", "hidden"), get("reader", "missing")
	wantReason(t, hidden, denied)
	if strings.ReplaceAll(hidden.Error(), "hidden", "missing") != missing.Error() {
		t.Errorf("%v tells of what exists: %v", hidden, missing)
	}
	change := func(who, name string, owner *string) error {
		_, err := s.UpdateCategory(as(who), &scribev1.UpdateCategoryRequest{Name: name, Owner: owner})
		return err
	}
	wantReason(t, change("alice", "a.1", nil), 0)
	wantReason(t, change("alice", "hidden", nil), denied)
	wantReason(t, change("alice", "a.1", new("team")), denied) // would give rights to whom rules about that owner do
	wantReason(t, change("root", "a.1", new("team")), 0)
	for who, want := range map[string]scribev1.Reason{"alice": 0, "reader": denied, "": unauthenticated} {
		_, err := s.DeleteCategory(as(who), &scribev1.DeleteCategoryRequest{Name: "a.1"})
		wantReason(t, err, want)
	}
	if want := []string{"update", "update", "delete"}; !slices.Equal(p.calls, want) {
		t.Errorf("carried out: %q, want %q", p.calls, want)
	}
	for who, want := range map[string]uint64{"reader": 0, "root": 7} {
		res, err := s.GetStatus(as(who), &scribev1.GetStatusRequest{})
		if err != nil || res.GetCategories() != want || len(res.GetMembers()) != 1 {
			t.Errorf("status for %s: %v, %v", who, res, err)
		}
	}
}

// groups are a cell's groups, by name.
type groups struct {
	rpc.GroupService
	list  []*scribev1.Group
	page  int
	calls []string
}

func (g *groups) ListGroups(_ context.Context, req *scribev1.ListGroupsRequest) (*scribev1.ListGroupsResponse, error) {
	res := &scribev1.ListGroupsResponse{Next: req.GetAfter()}
	for _, group := range g.list {
		switch {
		case group.GetName() <= req.GetAfter() || !strings.HasPrefix(group.GetName(), req.GetPrefix()):
		case len(res.GetGroups()) == g.page || req.GetLimit() > 0 && len(res.GetGroups()) == int(req.GetLimit()):
			res.More = true
			return res, nil
		default:
			res.Groups, res.Next = append(res.Groups, group), group.GetName()
		}
	}
	return res, nil
}

func (g *groups) JoinGroup(_ context.Context, req *scribev1.JoinGroupRequest) (*scribev1.JoinGroupResponse, error) {
	g.calls = append(g.calls, "join "+req.GetGroup())
	return &scribev1.JoinGroupResponse{}, nil
}

func (g *groups) DescribeGroup(_ context.Context, req *scribev1.DescribeGroupRequest) (*scribev1.DescribeGroupResponse, error) {
	g.calls = append(g.calls, "describe "+req.GetGroup())
	return &scribev1.DescribeGroupResponse{}, nil
}

func (g *groups) CommitGroup(_ context.Context, req *scribev1.CommitGroupRequest) (*scribev1.CommitGroupResponse, error) {
	g.calls = append(g.calls, "commit "+req.GetGroup())
	return &scribev1.CommitGroupResponse{}, nil
}

// TestGroups: a group of a category that one may not use groups of is like one that does not exist.
func TestGroups(t *testing.T) {
	e, _ := newEnforcer(t, nil, "alice group:a", "bob group:b")
	inner := &groups{page: 2, list: []*scribev1.Group{
		{Name: "g1", Category: "a"}, {Name: "g2", Category: "b"}, {Name: "g3", Category: "b"}, {Name: "g4", Category: "b"}, {Name: "g5", Category: "a"}, {Name: "g6", Category: "b"},
	}}
	s := e.Services(rpc.Services{Group: inner}).Group
	res, err := s.ListGroups(as("alice"), &scribev1.ListGroupsRequest{})
	if err != nil || len(res.GetGroups()) != 2 || res.GetMore() || res.GetNext() != "g5" {
		t.Errorf("alice's groups: %v, %v", res, err)
	}
	if res, err = s.ListGroups(as("alice"), &scribev1.ListGroupsRequest{Limit: 1}); err != nil || len(res.GetGroups()) != 1 || !res.GetMore() || res.GetNext() != "g1" {
		t.Errorf("a page of them: %v, %v", res, err)
	}
	describe := func(who, group string) error {
		_, err := s.DescribeGroup(as(who), &scribev1.DescribeGroupRequest{Group: group})
		return err
	}
	commit := func(who, group string) error {
		_, err := s.CommitGroup(as(who), &scribev1.CommitGroupRequest{Group: group})
		return err
	}
	join := func(who, group, category string) error {
		_, err := s.JoinGroup(as(who), &scribev1.JoinGroupRequest{Group: group, Category: category})
		return err
	}
	const unknown = scribev1.Reason_REASON_UNKNOWN_GROUP
	wantReason(t, describe("alice", "g1"), 0)
	wantReason(t, commit("bob", "g2"), 0)
	wantReason(t, join("alice", "g1", "a"), 0)
	wantReason(t, join("alice", "fresh", "a"), 0)
	hidden, missing := describe("alice", "g2"), describe("alice", "g0")
	wantReason(t, hidden, unknown)
	if strings.ReplaceAll(hidden.Error(), "g2", "g0") != missing.Error() {
		t.Errorf("%v tells of what exists: %v", hidden, missing)
	}
	wantReason(t, commit("alice", "g2"), unknown)
	wantReason(t, describe("alice", ""), unknown)
	wantReason(t, join("alice", "g2", "a"), unknown)
	wantReason(t, join("alice", "g2", "b"), denied)
	if want := "describe g1, commit g2, join g1, join fresh"; strings.Join(inner.calls, ", ") != want {
		t.Errorf("carried out: %q, want %q", inner.calls, want)
	}
}

// TestTenantQuotas: only who may manage every category changes the quotas of tenants; others see those of tenants of whom they see everything.
func TestTenantQuotas(t *testing.T) {
	e, _ := newEnforcer(t, nil, "alice manage:a.* write:owner=team", "part read:web.access", "root manage:*", "reader read:*", "watcher monitor:*")
	p := &plane{}
	s := e.Services(rpc.Services{Control: p}).Control
	for _, who := range []string{"", "alice", "reader"} {
		_, set := s.SetTenantQuota(as(who), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Prefix: "a."}})
		_, removed := s.RemoveTenantQuota(as(who), &scribev1.RemoveTenantQuotaRequest{Prefix: "a."})
		if set == nil || removed == nil {
			t.Errorf("%q may change quotas: %v, %v", who, set, removed)
		}
	}
	if len(p.calls) > 0 {
		t.Errorf("calls that were denied: %q", p.calls)
	}
	_, set := s.SetTenantQuota(as("root"), &scribev1.SetTenantQuotaRequest{Quota: &scribev1.TenantQuota{Prefix: "a."}})
	_, removed := s.RemoveTenantQuota(as("root"), &scribev1.RemoveTenantQuotaRequest{Prefix: "a."})
	if set != nil || removed != nil || !slices.Equal(p.calls, []string{"set quota", "remove quota"}) {
		t.Errorf("who may manage everything: %v, %v, calls %q", set, removed, p.calls)
	}
	for who, want := range map[string]string{"alice": "team a.", "part": "", "watcher": "", "root": "shop team a. web. web.access", "reader": "shop team a. web. web.access"} {
		res, err := s.ListTenantQuotas(as(who), &scribev1.ListTenantQuotasRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, q := range res.GetQuotas() {
			got = append(got, q.GetOwner()+q.GetPrefix())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s sees the quotas of %q, want %q", who, got, want)
		}
	}
}
