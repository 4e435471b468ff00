// Package principal says who makes a request: what the transport proved of the caller, carried in the context.
package principal

import "context"

// Kind says how a caller proved who it is, and with that which kinds of calls can be open to it at all.
type Kind uint8

const (
	// Anonymous has proved nothing. It is the zero value: a context without a principal is anonymous.
	Anonymous Kind = iota
	// Client proved a name, by a client certificate or by a token that the cell issued.
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
	// Token is the id of the token that proved the name, empty if a certificate did.
	Token string
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
