package enforce

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"scribe/internal/cell/access"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// accessService says of the text of a token whom it proves: only the process that is asked has the issuer's keys, and nobody else gets the text.
type accessService struct {
	rpc.AccessService
	e *Enforcer
}

// CheckAccess implements rpc.AccessService.
func (s accessService) CheckAccess(ctx context.Context, req *scribev1.CheckAccessRequest) (*scribev1.CheckAccessResponse, error) {
	text := req.GetText()
	if text == "" {
		return s.AccessService.CheckAccess(ctx, req)
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
