package enforce

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"scribe/internal/cell/access"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// accessService says of the text of a token whom it proves: only the process that is asked has the issuer's keys, and nobody else gets the text.
type accessService struct {
	rpc.AccessService
	e *Enforcer
}

// AddGrants implements rpc.AccessService.
func (s accessService) AddGrants(ctx context.Context, req *scribev1.AddGrantsRequest) (*scribev1.AddGrantsResponse, error) {
	if err := s.e.checkLimits(ctx, req.GetRules()); err != nil {
		return nil, err
	}
	return s.AccessService.AddGrants(ctx, req)
}

// IssueToken implements rpc.AccessService.
func (s accessService) IssueToken(ctx context.Context, req *scribev1.IssueTokenRequest) (*scribev1.IssueTokenResponse, error) {
	if err := s.e.checkLimits(ctx, req.GetRules()); err != nil {
		return nil, err
	}
	return s.AccessService.IssueToken(ctx, req)
}

// checkLimits refuses rules about a category that exists and has a schema which their limits do not fit: a name is misspelt, or a text has no quotes. What is no rule is not
// looked at.
func (e *Enforcer) checkLimits(ctx context.Context, rules []string) error {
	categories := e.categories.Load()
	if categories == nil {
		return nil
	}
	for _, text := range rules {
		rule, err := access.ParseRule(text)
		if err != nil || rule.Limit.IsZero() || rule.Category() == "" {
			continue
		}
		c, err := (*categories).Resolve(ctx, rule.Category())
		if err != nil || c.GetSchema() == "" {
			continue // it need not exist, and may get its schema later
		}
		if _, err := restrict.Apply(c, restrict.New(rule.Limit)); err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "rule %q: whoever has it could read nothing of category %q: %w", text, c.GetName(), err)
		}
	}
	return nil
}

// CheckAccess implements rpc.AccessService.
func (s accessService) CheckAccess(ctx context.Context, req *scribev1.CheckAccessRequest) (*scribev1.CheckAccessResponse, error) {
	text := req.GetText()
	if text == "" {
		res, err := s.AccessService.CheckAccess(ctx, req)
		if err == nil {
			s.e.explainLimits(ctx, req.GetCategory(), res)
		}
		return res, err
	}
	if req.GetPrincipal() != "" || req.GetToken() != "" || len(req.GetRoles()) > 0 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "check access: text: want the text of a token alone, without a principal, a token or roles")
	}
	p, err := s.e.prove(ctx, text, sha256.Sum256([]byte(text)))
	if err != nil {
		return &scribev1.CheckAccessResponse{Reason: explainRefusal(err)}, nil
	}
	ask := proto.CloneOf(req)
	ask.Text = ""
	if ask.Token = p.Token; p.Token == "" {
		ask.Principal = p.Name
	}
	if p.Issued != nil {
		ask.Roles = p.Issued.Roles
	}
	res, err := s.AccessService.CheckAccess(ctx, ask)
	if err != nil {
		return nil, err
	}
	s.e.explainLimits(ctx, req.GetCategory(), res)
	res.Principal, res.Roles = p.Name, ask.GetRoles()
	if end := s.e.rights.Set().EndOf(p); !end.IsZero() {
		res.ExpiresAt = end.UnixMicro()
	}
	return res, nil
}

// explainRefusal says why a token proves nothing.
func explainRefusal(err error) string {
	if refused, ok := errors.AsType[*access.TokenError](err); ok && refused.Err == nil {
		return refused.Cause.Explain()
	}
	return fmt.Sprintf("the token proves nothing: %v", err)
}
