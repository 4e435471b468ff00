package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/controlplane/request"
	"scribe/internal/cell/access"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

var _ rpc.AccessService = (*ControlPlane)(nil)

// Values of the label "change" of access changes.
const (
	accessIssued    = "token_issued"
	accessRevoked   = "token_revoked"
	accessGranted   = "granted"
	accessUngranted = "grant_removed"
	accessTended    = "tended"
)

const (
	minTokenTTL = time.Second
	maxTokenTTL = 10 * 365 * 24 * time.Hour
	// maxAccessList is the largest page of tokens and of grants.
	maxAccessList = 1000
)

// WatchAccess implements rpc.AccessService. It ends with REASON_SHUTTING_DOWN when the control plane closes.
func (c *ControlPlane) WatchAccess(ctx context.Context, req *scribev1.WatchAccessRequest, send func(*scribev1.WatchAccessResponse) error) error {
	heartbeat, done, err := c.enterWatch(watchAccess, req.GetHeartbeat())
	if err != nil {
		return err
	}
	defer done()
	return serveFeed(ctx, c, c.accessFeed, heartbeat, func(at feedCursor, s feedStep) *scribev1.WatchAccessResponse {
		msg := &scribev1.WatchAccessResponse{Reset_: s.reset, Deleted: s.deleted, Synced: s.syncs, Revision: at.revision}
		for _, e := range s.updated {
			msg.Updated = append(msg.Updated, &scribev1.AccessRecord{Key: e.Key, Value: e.Value})
		}
		return msg
	}, send, nil)
}

// storedAccess is what the store has at one moment.
type storedAccess struct {
	records map[string][]byte
	set     *access.Set
	// revision is that of the key that changes with every change.
	revision uint64
}

// readAccess reads all records. Only administration and tending do.
func (c *ControlPlane) readAccess(ctx context.Context) (*storedAccess, error) {
	a := &storedAccess{records: make(map[string][]byte)}
	// First the revision: a change after it makes the commit fail.
	switch e, err := c.deps.Store.Get(ctx, accessChangesKey); {
	case err == nil:
		a.revision = e.Revision
	case !errors.Is(err, kv.ErrNotFound):
		return nil, err
	}
	for after := ""; ; {
		page, err := c.deps.Store.Range(ctx, kv.KeyRange{Prefix: accessPrefix, After: after})
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			after = e.Key
			a.records[strings.TrimPrefix(e.Key, accessPrefix)] = e.Value
		}
		if !page.More {
			a.set, _ = access.NewSet(a.records) // those that watch log what is damaged
			return a, nil
		}
	}
}

// accessChange is what a change does to the records.
type accessChange struct {
	put     map[string]proto.Message
	removed []string
}

// changeAccess lets decide choose a change by the present records, and commits it. Of changes at the same time all but one decide
// anew. A change that would leave a closed cell without an administrator is refused, as is one that closes a cell in which members
// can't be told from clients. No change means that nothing needs to change.
func (c *ControlPlane) changeAccess(ctx context.Context, kind, what string, decide func(*storedAccess) (accessChange, error)) error {
	for range maxAttempts {
		now, err := c.readAccess(ctx)
		if err != nil {
			return request.ReadError(what, err)
		}
		change, err := decide(now)
		if err != nil || len(change.put)+len(change.removed) == 0 {
			return err
		}
		if !now.set.Closed() {
			if err := c.mayClose(ctx, what); err != nil {
				return err
			}
			change.put[access.KeyKey(1)] = c.newTicketKey(1)
		}
		ops := []kv.Op{kv.Put(accessChangesKey, []byte{1}).If(now.revision)}
		put := make(map[string][]byte, len(change.put))
		for key, m := range change.put {
			if put[key], err = access.EncodeRecord(m); err != nil {
				return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
			}
			ops = append(ops, kv.Put(accessPrefix+key, put[key]))
		}
		for _, key := range change.removed {
			ops = append(ops, kv.Delete(accessPrefix+key))
		}
		if kind != accessTended {
			if next, _ := now.set.Apply(put, change.removed); !next.HasAdministrator(c.deps.Now()) {
				return rpc.Errorf(scribev1.Reason_REASON_INVALID,
					"%s: nobody could administer the cell afterwards: first give somebody all:*, with scribe token issue --can 'all:*' or scribe grant PRINCIPAL 'all:*'", what)
			}
		}
		_, err = c.deps.Store.Commit(ctx, ops...)
		if err == nil {
			c.metrics.accessChanges.WithLabelValues(kind).Inc()
			return nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			_, err = commitError(what, err)
			return err
		}
	}
	return errContended(what)
}

// mayClose refuses to close a cell in which members can't be told from clients.
func (c *ControlPlane) mayClose(ctx context.Context, what string) error {
	if c.cfg.MembersProven {
		return nil
	}
	res, err := c.ListMembers(ctx, &scribev1.ListMembersRequest{})
	if err != nil {
		return err
	}
	if n := len(res.GetMembers()); n > 1 || c.cfg.Shared {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: the first token or grant closes the cell to all that prove nothing, and its %d processes prove nothing to each other: "+
			"give them certificates first (docs/security.md)", what, n)
	}
	return nil
}

func (c *ControlPlane) newTicketKey(id uint32) *scribev1.TicketKey {
	k := &scribev1.TicketKey{Id: id, Secret: make([]byte, access.KeyBytes), CreatedAt: c.deps.Now().UnixMicro()}
	c.deps.Random.Read(k.Secret)
	return k
}

// checkNewRules refuses rules that are valid, but hardly what somebody meant.
func checkNewRules(rules []string) error {
	var errs []error
	for _, rule := range rules {
		errs = append(errs, access.CheckNewRule(rule))
	}
	return errors.Join(errs...)
}

// checkLimits refuses rules of one record whose limits to rows and columns are too many or too long, whose reader has the rules of some roles as well. What is refused here would
// deny where it is read, or make every process's copy of the rules large. Roles of an issuer's token, and a role that is extended later, may still add up to too many: then
// reading is denied, and CheckAccess says why.
func checkLimits(a *storedAccess, what string, before, after []string) error {
	withRoles := func(rules []string) []string {
		all := slices.Clone(rules)
		for _, rule := range rules {
			if access.IsRole(rule) {
				if g, err := access.DecodeGrant(rule, a.records[access.GrantKey(rule)]); err == nil {
					all = append(all, g.GetRules()...)
				}
			}
		}
		return all
	}
	category, n := access.MostLimits(withRoles(after))
	if _, was := access.MostLimits(withRoles(before)); n > restrict.MaxLimits && n > was {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: rules: there would be %d different limits to rows and columns of category %q, the limit is %d: join conditions by OR in one rule, or revoke rules", what, n, category, restrict.MaxLimits)
	}
	if n = access.LimitBytesOf(after); n > access.MaxRecordLimits {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: rules: their limits to rows and columns would have %d bytes together, the limit is %d: use prefixes, or divide them among roles", what, n, access.MaxRecordLimits)
	}
	if more := n - access.LimitBytesOf(before); more > 0 && a.set.LimitBytes()+more > access.MaxLimitBytes {
		return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: the limits to rows and columns of all rules have %d bytes, the limit is %d: use prefixes or roles", what, a.set.LimitBytes(), access.MaxLimitBytes)
	}
	return nil
}

// IssueToken implements rpc.AccessService.
func (c *ControlPlane) IssueToken(ctx context.Context, req *scribev1.IssueTokenRequest) (*scribev1.IssueTokenResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "issue token"
	var v request.Violations
	rules, err := access.ParseRules(req.GetRules(), false)
	if n := len(req.GetRules()); n > access.MaxTokenRules {
		v.Add("rules", "%d of them, the limit is %d", n, access.MaxTokenRules)
	} else if err = errors.Join(err, checkNewRules(req.GetRules())); err != nil {
		v.Add("rules", "%v", err)
	}
	if name := req.GetPrincipal(); name != "" {
		if err := access.CheckPrincipal(name); err != nil {
			v.Add("principal", "%v", err)
		} else if access.IsRole(name) {
			v.Add("principal", "%q is a role: grant it to a principal", name)
		}
	} else if len(rules) == 0 {
		v.Add("rules", "are missing: want rules, or a principal whose grants count")
	}
	ttl := v.Duration("ttl", req.GetTtl(), minTokenTTL, maxTokenTTL, 0)
	if err := v.Err(what); err != nil {
		return nil, err
	}
	id, text, hash := access.NewToken(c.deps.Random)
	now := c.deps.Now()
	t := &scribev1.AccessToken{Id: id, Principal: cmp.Or(req.GetPrincipal(), id), Rules: rules, Hash: hash, IssuedAt: now.UnixMicro()}
	if ttl > 0 {
		t.ExpiresAt = now.Add(ttl).UnixMicro()
	}
	err = c.changeAccess(ctx, accessIssued, what, func(a *storedAccess) (accessChange, error) {
		if n := a.set.Tokens(); n >= access.MaxTokens {
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: there are %d tokens, which is the limit: those that were revoked or have expired go after %v", what, n, tokenGrace)
		}
		if err := checkLimits(a, what, nil, rules); err != nil {
			return accessChange{}, err
		}
		return accessChange{put: map[string]proto.Message{access.TokenKey(id): t}}, nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("token issued", "token", id, "principal", t.GetPrincipal(), "rules", rules, "ttl", ttl, "by", describeCaller(ctx))
	shown := proto.CloneOf(t)
	shown.Hash = nil
	return &scribev1.IssueTokenResponse{Text: text, Token: shown}, nil
}

// describeCaller says who makes a request, for logs.
func describeCaller(ctx context.Context) string {
	p := principal.FromContext(ctx)
	if id := p.TokenID(); id != "" {
		return fmt.Sprintf("%s %s (token %s)", p.Kind, p.Name, id)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", p.Kind, p.Name))
}

// ListTokens implements rpc.AccessService.
func (c *ControlPlane) ListTokens(ctx context.Context, req *scribev1.ListTokensRequest) (*scribev1.ListTokensResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	resp := &scribev1.ListTokensResponse{}
	var err error
	resp.More, resp.Next, err = c.listRecords(ctx, "list tokens", access.TokenKey(""), req.GetAfter(), req.GetLimit(), func(id string, value []byte) {
		t, err := access.DecodeToken(id, value)
		if err != nil {
			resp.Damaged = append(resp.Damaged, id)
			return
		}
		t.Hash = nil
		resp.Tokens = append(resp.Tokens, t)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// listRecords calls fn with a page of the records of a kind.
func (c *ControlPlane) listRecords(ctx context.Context, what, kind, after string, limit uint32, fn func(name string, value []byte)) (more bool, next string, err error) {
	if len(after) > access.MaxName+16 {
		return false, "", rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: after: %d bytes are too many", what, len(after))
	}
	r := kv.KeyRange{Prefix: accessPrefix + kind, Limit: int(cmp.Or(min(limit, maxAccessList), maxAccessList))}
	if after != "" {
		r.After = r.Prefix + after
	}
	page, err := c.deps.Store.Range(ctx, r)
	if err != nil {
		return false, "", request.ReadError(what, err)
	}
	for _, e := range page.Entries {
		next = strings.TrimPrefix(e.Key, r.Prefix)
		fn(next, e.Value)
	}
	return page.More, next, nil
}

// RevokeToken implements rpc.AccessService.
func (c *ControlPlane) RevokeToken(ctx context.Context, req *scribev1.RevokeTokenRequest) (*scribev1.RevokeTokenResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	what := fmt.Sprintf("revoke token %q", shorten(req.GetId()))
	key := access.TokenKey(req.GetId())
	err := c.changeAccess(ctx, accessRevoked, what, func(a *storedAccess) (accessChange, error) {
		value, ok := a.records[key]
		if !ok {
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s: there is no token with that id: scribe token list shows them", what)
		}
		t, err := access.DecodeToken(req.GetId(), value)
		if err != nil { // it proves nothing, and may go
			return accessChange{removed: []string{key}}, nil //nolint:nilerr // see above
		}
		if t.GetRevokedAt() != 0 {
			return accessChange{}, nil
		}
		t.RevokedAt = c.deps.Now().UnixMicro()
		return accessChange{put: map[string]proto.Message{key: t}}, nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("token revoked", "token", req.GetId(), "by", describeCaller(ctx))
	return &scribev1.RevokeTokenResponse{}, nil
}

// AddGrants implements rpc.AccessService. Rules that are given to a record that is damaged replace it.
func (c *ControlPlane) AddGrants(ctx context.Context, req *scribev1.AddGrantsRequest) (*scribev1.AddGrantsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	name := req.GetPrincipal()
	what := fmt.Sprintf("grant to %q", shorten(name))
	var v request.Violations
	if err := access.CheckPrincipal(name); err != nil {
		v.Add("principal", "%v", err)
	}
	rules, err := access.ParseRules(req.GetRules(), !access.IsRole(name))
	if n := len(req.GetRules()); n < 1 || n > access.MaxTokenRules {
		v.Add("rules", "%d of them, want 1 to %d", n, access.MaxTokenRules)
	} else if err = errors.Join(err, checkNewRules(req.GetRules())); err != nil {
		v.Add("rules", "%v", err)
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	var after *scribev1.AccessGrant
	err = c.changeAccess(ctx, accessGranted, what, func(a *storedAccess) (accessChange, error) {
		before, _ := access.DecodeGrant(name, a.records[access.GrantKey(name)])
		after = &scribev1.AccessGrant{Principal: name}
		if after.Rules, err = access.ParseRules(append(slices.Clone(before.GetRules()), rules...), !access.IsRole(name)); err != nil {
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: rules: %w", what, err)
		}
		added := len(after.GetRules()) - len(before.GetRules())
		switch {
		case len(after.GetRules()) > access.MaxGrantRules:
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: it would have %d rules, the limit is %d: use prefixes, owners or roles", what, len(after.GetRules()), access.MaxGrantRules)
		case a.set.Rules()+added > access.MaxRules, before == nil && a.set.Principals() >= access.MaxPrincipals:
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: there are %d rules of %d principals and roles, the limits are %d and %d: use prefixes, owners or roles",
				what, a.set.Rules(), a.set.Principals(), access.MaxRules, access.MaxPrincipals)
		case added == 0:
			return accessChange{}, nil
		}
		if err := checkLimits(a, what, before.GetRules(), after.GetRules()); err != nil {
			return accessChange{}, err
		}
		return accessChange{put: map[string]proto.Message{access.GrantKey(name): after}}, nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("rules granted", "principal", name, "rules", rules, "by", describeCaller(ctx))
	return &scribev1.AddGrantsResponse{Grant: after}, nil
}

// RemoveGrants implements rpc.AccessService.
func (c *ControlPlane) RemoveGrants(ctx context.Context, req *scribev1.RemoveGrantsRequest) (*scribev1.RemoveGrantsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	name := req.GetPrincipal()
	what := fmt.Sprintf("revoke from %q", shorten(name))
	var v request.Violations
	if err := access.CheckPrincipal(name); err != nil {
		v.Add("principal", "%v", err)
	}
	rules, err := access.ParseRules(req.GetRules(), !access.IsRole(name))
	switch n := len(req.GetRules()); {
	case req.GetAll() == (n > 0) || n > access.MaxGrantRules:
		v.Add("rules", "%d of them, want 1 to %d, or all", n, access.MaxGrantRules)
	case err != nil:
		v.Add("rules", "%v", err)
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	key := access.GrantKey(name)
	var after *scribev1.AccessGrant
	err = c.changeAccess(ctx, accessUngranted, what, func(a *storedAccess) (accessChange, error) {
		after = nil
		value, ok := a.records[key]
		if !ok {
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s: it has no grants: scribe grants shows all", what)
		}
		if req.GetAll() {
			return accessChange{removed: []string{key}}, nil
		}
		before, err := access.DecodeGrant(name, value)
		if err != nil {
			return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s: its record is damaged and gives no rights: revoke all of it, and grant again: %w", what, err)
		}
		for _, rule := range rules {
			if !slices.Contains(before.GetRules(), rule) {
				return accessChange{}, rpc.Errorf(scribev1.Reason_REASON_MISSING, "%s: it has no rule %q: want one of %s", what, rule, shorten(strings.Join(before.GetRules(), " ")))
			}
		}
		left := slices.DeleteFunc(slices.Clone(before.GetRules()), func(rule string) bool { return slices.Contains(rules, rule) })
		if len(left) == 0 {
			return accessChange{removed: []string{key}}, nil
		}
		after = &scribev1.AccessGrant{Principal: name, Rules: left}
		return accessChange{put: map[string]proto.Message{key: after}}, nil
	})
	if err != nil {
		return nil, err
	}
	c.logger.Info("rules revoked", "principal", name, "rules", rules, "all", req.GetAll(), "by", describeCaller(ctx))
	return &scribev1.RemoveGrantsResponse{Grant: after}, nil
}

// ListGrants implements rpc.AccessService.
func (c *ControlPlane) ListGrants(ctx context.Context, req *scribev1.ListGrantsRequest) (*scribev1.ListGrantsResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	resp := &scribev1.ListGrantsResponse{}
	var err error
	resp.More, resp.Next, err = c.listRecords(ctx, "list grants", access.GrantKey(""), req.GetAfter(), req.GetLimit(), func(name string, value []byte) {
		g, err := access.DecodeGrant(name, value)
		if err != nil {
			resp.Damaged = append(resp.Damaged, name)
			return
		}
		resp.Grants = append(resp.Grants, g)
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// maxCheckedRoles bounds the roles that an issuer's token gives in a check.
const maxCheckedRoles = 128

// CheckAccess implements rpc.AccessService. The category need not exist.
func (c *ControlPlane) CheckAccess(ctx context.Context, req *scribev1.CheckAccessRequest) (*scribev1.CheckAccessResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "check access"
	var v request.Violations
	permission, err := access.ParsePermission(req.GetPermission())
	if err != nil {
		v.Add("permission", "%v", err)
	}
	if req.GetCategory() != "" {
		checkCategoryName(&v, "category", req.GetCategory())
	}
	v.CheckText("principal", req.GetPrincipal(), access.MaxName)
	v.CheckText("token", req.GetToken(), access.MaxName)
	if (req.GetPrincipal() == "") == (req.GetToken() == "") {
		v.Add("principal", "want a principal, or the id of a token")
	}
	if n := len(req.GetRoles()); n > maxCheckedRoles {
		v.Add("roles", "%d roles, the limit is %d", n, maxCheckedRoles)
	}
	for i, role := range req.GetRoles() {
		if err := access.CheckPrincipal(role); err != nil || !access.IsRole(role) {
			v.Add(fmt.Sprintf("roles[%d]", i), "want role:NAME")
		}
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	owner := ""
	if req.GetCategory() != "" {
		cat, err := c.readCategory(ctx, req.GetCategory())
		if err != nil && !errors.Is(err, kv.ErrNotFound) {
			return nil, request.ReadError(what, err)
		}
		owner = cat.GetOwner()
	}
	a, err := c.readAccess(ctx)
	if err != nil {
		return nil, request.ReadError(what, err)
	}
	p, now := principal.Principal{Kind: principal.Client, Name: req.GetPrincipal(), Token: req.GetToken()}, c.deps.Now()
	if len(req.GetRoles()) > 0 {
		p.Issued = &principal.Issued{Roles: req.GetRoles(), Expires: now.Add(time.Hour)}
	}
	e := a.set.Explain(p, permission, req.GetCategory(), owner, now)
	return &scribev1.CheckAccessResponse{Allowed: e.Allowed, Rule: e.Rule, Holder: e.Holder, Reason: e.Reason, Limits: e.Limits}, nil
}
