package oidc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/json"

	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
)

// claims are what a token says, by name.
type claims map[string]any

func parseClaims(payload []byte) (c claims, err error) {
	err = json.Unmarshal(payload, &c)
	if err == nil && c == nil {
		err = errors.New("want an object")
	}
	return c, err
}

// find returns a claim: of that name, or in objects on a path with dots. Names of claims may be URLs, which have dots of their own.
func (c claims) find(name string) (any, bool) {
	if v, ok := c[name]; ok {
		return v, true
	}
	head, rest, ok := strings.Cut(name, ".")
	if !ok {
		return nil, false
	}
	inner, ok := c[head].(map[string]any)
	if !ok {
		return nil, false
	}
	return claims(inner).find(rest)
}

// time returns a claim with a time (NumericDate); zero if there is none.
func (c claims) time(name string) (time.Time, error) {
	v, ok := c[name]
	if !ok {
		return time.Time{}, nil
	}
	seconds, ok := v.(float64)
	if !ok || !(seconds >= 0 && seconds < 1<<40) { // NaN is neither
		return time.Time{}, denial(access.BadClaims, "its claim %s is not a time", name)
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)), nil
}

// texts returns the texts in a claim: it is one, or a list of some.
func texts(claim any) (list []string, ok bool) {
	switch v := claim.(type) {
	case string:
		return []string{v}, true
	case []any:
		for _, entry := range v {
			text, ok := entry.(string)
			if !ok {
				return nil, false
			}
			list = append(list, text)
		}
		return list, true
	default:
		return nil, false
	}
}

// checkClaims checks for whom a token is and when, and returns when it ends.
func (v *Verifier) checkClaims(c claims, now time.Time) (ends time.Time, err error) {
	if iss, _ := c["iss"].(string); iss != v.cfg.Issuer {
		return ends, denial(access.WrongIssuer, "its issuer is %q, and not %q", shorten(iss), v.cfg.Issuer)
	}
	for _, name := range []string{"exp", "nbf", "iat"} {
		at, err := c.time(name)
		switch {
		case err != nil:
			return ends, err
		case name == "exp" && at.IsZero():
			return ends, denial(access.BadClaims, "it has no end (claim exp)")
		case name == "exp" && !now.Before(at):
			return ends, denial(access.Expired, "it has expired at %s", at.UTC().Format(time.RFC3339))
		case name == "exp":
			ends = at
		case at.After(now.Add(v.cfg.ClockSkew)):
			return ends, denial(access.NotYetValid, "it is valid from %s on (claim %s), and here it is %s", at.UTC().Format(time.RFC3339), name, now.UTC().Format(time.RFC3339))
		}
	}
	audience, _ := texts(c["aud"])
	if !slices.ContainsFunc(audience, func(a string) bool { return slices.Contains(v.cfg.Audiences, a) }) {
		return ends, denial(access.WrongAudience, "its audience is %q, and not %q", shorten(strings.Join(audience, ",")), strings.Join(v.cfg.Audiences, ","))
	}
	return ends, nil
}

// principalOf returns whom a token names whose signature is right.
func (v *Verifier) principalOf(t *token) (principal.Principal, error) {
	fail := func(format string, args ...any) (principal.Principal, error) {
		return principal.Principal{}, denial(access.BadClaims, format, args...)
	}
	for _, required := range v.cfg.Require {
		name, value, valued := strings.Cut(required, "=")
		claim, ok := t.claims.find(name)
		switch {
		case !ok:
			return fail("its claim %s is missing", name)
		case valued && !hasValue(claim, value):
			return fail("its claim %s is not %q", name, value)
		}
	}
	claim, _ := t.claims.find(v.cfg.PrincipalClaim)
	name, ok := claim.(string)
	if !ok || name == "" {
		return fail("its claim %s, the name of the principal, is missing or not a text", v.cfg.PrincipalClaim)
	}
	// Whoever may choose an address at the issuer would be whom it belongs to.
	if verified, _ := t.claims["email_verified"].(bool); v.cfg.PrincipalClaim == "email" && !verified {
		return fail("the issuer has not verified its claim email (email_verified)")
	}
	p := principal.Principal{Kind: principal.Client, Name: v.cfg.Prefix + name, Issued: &principal.Issued{Expires: t.ends}}
	if err := access.CheckPrincipal(p.Name); err != nil {
		return fail("its claim %s names nobody: %w", v.cfg.PrincipalClaim, err)
	}
	if access.IsRole(p.Name) {
		return fail("its claim %s names a role", v.cfg.PrincipalClaim)
	}
	if id, ok := t.claims["jti"].(string); ok && access.CheckPrincipal(id) == nil {
		p.Issued.ID = id
	}
	var err error
	if p.Issued.Roles, err = v.rolesOf(t.claims); err != nil {
		return fail("%w", err)
	}
	return p, nil
}

// rolesOf returns the roles that a token gives, as grants name them. Scopes are one text with spaces.
func (v *Verifier) rolesOf(c claims) ([]string, error) {
	claim, ok := c.find(v.cfg.RolesClaim)
	if v.cfg.RolesClaim == "" || !ok || claim == nil {
		return nil, nil
	}
	names, ok := texts(claim)
	if !ok {
		return nil, fmt.Errorf("its claim %s, the roles, is neither a text nor a list of texts", v.cfg.RolesClaim)
	}
	if text, ok := claim.(string); ok && (v.cfg.RolesClaim == "scope" || v.cfg.RolesClaim == "scp") {
		names = strings.Fields(text)
	}
	if len(names) > maxRoles {
		return nil, fmt.Errorf("its claim %s has %d roles, the limit is %d: have the issuer give those of this cell alone", v.cfg.RolesClaim, len(names), maxRoles)
	}
	roles := make([]string, 0, len(names))
	for _, name := range names {
		// Groups whose names are not those of roles have no grants.
		if role := access.RoleName(v.cfg.Prefix + name); name != "" && access.CheckPrincipal(role) == nil {
			roles = append(roles, role)
		}
	}
	slices.Sort(roles)
	return slices.Compact(roles), nil
}

// hasValue reports whether a claim is a value, or a list with it.
func hasValue(claim any, want string) bool {
	if list, ok := claim.([]any); ok {
		return slices.ContainsFunc(list, func(v any) bool { return isValue(v, want) })
	}
	return isValue(claim, want)
}

func isValue(claim any, want string) bool {
	if text, ok := claim.(string); ok {
		return text == want
	}
	if _, ok := claim.(map[string]any); ok {
		return false
	}
	encoded, err := json.Marshal(claim)
	return err == nil && bytes.Equal(encoded, []byte(want))
}
