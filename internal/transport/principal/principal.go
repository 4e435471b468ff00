// Package principal says who makes a request: what the transport proved of the caller, carried in the context.
package principal

import (
	"cmp"
	"context"
	"time"
)

// Kind says how a caller proved who it is, and with that which kinds of calls can be open to it at all.
type Kind uint8

const (
	// Anonymous has proved nothing. It is the zero value: a context without a principal is anonymous.
	Anonymous Kind = iota
	// Client proved a name, by a client certificate or by a token, of the cell or of an issuer.
	Client
	// Agent is the daemon of a host.
	Agent
	// Operator may call what only operators may.
	Operator
	// Member is a process of the cell.
	Member
)

// String returns the word that certificates, errors and documents use.
func (k Kind) String() string {
	switch k {
	case Client:
		return "client"
	case Agent:
		return "agent"
	case Operator:
		return "operator"
	case Member:
		return "member"
	default:
		return "anonymous"
	}
}

// Principal is who makes a request.
type Principal struct {
	Kind Kind
	// Name is the proved name: the certificate's common name or SPIFFE id, or the token's principal. Empty for Anonymous.
	Name string
	// Token is the id of the cell's token that proved the name, empty if something else did.
	Token string
	// Issued is set if a token of an issuer proved the name.
	Issued *Issued
}

// TokenID returns the id of the token that proved the name, for people; empty if none did, or its issuer gave it none.
func (p Principal) TokenID() string {
	if p.Issued != nil {
		return cmp.Or(p.Token, p.Issued.ID)
	}
	return p.Token
}

// Issued is what the token of an issuer says of a principal beside the name. It never changes, but that its key may be withdrawn.
type Issued struct {
	// ID is the issuer's name for the token; it may be empty.
	ID string
	// Roles are what the token gives beside what is granted to the name, as grants name them.
	Roles []string
	// Expires is when the token ends.
	Expires time.Time
	// Withdrawn is closed once the issuer no longer has the key that signed the token. Nil if that can't be.
	Withdrawn <-chan struct{}
}

// Ended reports whether the token proves nothing any more.
func (i *Issued) Ended(now time.Time) bool { return !now.Before(i.Expires) || i.WithoutKey() }

// WithoutKey reports whether the issuer has withdrawn the key that signed the token.
func (i *Issued) WithoutKey() bool {
	select {
	case <-i.Withdrawn:
		return true
	default:
		return false
	}
}

type contextKey struct{}

// NewContext returns a context that carries p.
func NewContext(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns who makes the request of ctx.
func FromContext(ctx context.Context) Principal {
	p, _ := ctx.Value(contextKey{}).(Principal)
	return p
}
