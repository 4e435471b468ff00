package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/transport/principal"
)

// The text of a token is tokenPrefix, its id, an underscore, and secretBytes random bytes in URL-safe base64.
const (
	tokenPrefix = "scribe_"
	idLen       = 12
	secretBytes = 32
	hashLen     = sha256.Size
	// tokenLen is the length of a token's text.
	tokenLen = len(tokenPrefix) + idLen + 1 + (secretBytes*8+5)/6
)

// NewToken returns the id, the text and the hash of a new token.
func NewToken(random *entropy.Source) (id, text string, hash []byte) {
	id = strings.ToLower(random.Text()[:idLen])
	var secret [secretBytes]byte
	random.Read(secret[:])
	text = tokenPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(text))
	return id, text, sum[:]
}

// IsForeign reports whether a text is not a token of a cell, but may be one of an issuer.
func IsForeign(text string) bool {
	return !strings.HasPrefix(text, tokenPrefix) && strings.Count(text, ".") == 2
}

// tokenID returns the id in a token's text.
func tokenID(text string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok || len(text) != tokenLen || rest[idLen] != '_' {
		return "", false
	}
	return rest[:idLen], true
}

// Authenticate returns the principal that a token's text proves, an operator if it may operate or monitor the cell, or why it proves none. Whether the id exists is compared in
// variable time, the secret in constant time.
func (s *Set) Authenticate(text string, now time.Time) (principal.Principal, Cause) {
	id, ok := tokenID(text)
	if !ok {
		return principal.Principal{}, BadToken
	}
	t := s.tokens[id]
	if t == nil || t.damaged {
		return principal.Principal{}, BadToken
	}
	sum := sha256.Sum256([]byte(text))
	if subtle.ConstantTimeCompare(sum[:], t.hash[:]) != 1 {
		return principal.Principal{}, BadToken
	}
	// Only whoever has the secret learns that the token is old.
	if cause := t.validity(now); cause != Allowed {
		return principal.Principal{}, cause
	}
	return s.WithKind(principal.Principal{Kind: principal.Client, Name: t.principal, Token: id}, now), Allowed
}

// WithKind returns a principal whom a token has proved with the kind that its rights give it: an operator's if it may operate or monitor the cell. In an open cell,
// where everybody may, it is a client's: who may operate that is proved by certificates.
func (s *Set) WithKind(p principal.Principal, now time.Time) principal.Principal {
	if p.Kind = principal.Client; s.closed && s.Decide(p, Monitor, "", "", now) == Allowed {
		p.Kind = principal.Operator
	}
	return p
}

// TokenError says why a token proves nothing.
type TokenError struct {
	Cause Cause
	// Err says it of this token, for whoever has it.
	Err error
}

// Error implements error.
func (e *TokenError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *TokenError) Unwrap() error { return e.Err }

// EndOf returns when a principal's token ends; zero if it has none, or it never ends.
func (s *Set) EndOf(p principal.Principal) time.Time {
	if p.Issued != nil {
		return p.Issued.Expires
	}
	if t := s.tokens[p.Token]; t != nil && t.expires != 0 {
		return time.UnixMicro(t.expires)
	}
	return time.Time{}
}
