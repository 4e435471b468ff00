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
	p := principal.Principal{Kind: principal.Client, Name: t.principal, Token: id}
	if s.Decide(p, Monitor, "", "", now) == Allowed {
		p.Kind = principal.Operator
	}
	return p, Allowed
}

// EndOf returns when a principal's token ends; zero if it has none, or it never ends.
func (s *Set) EndOf(p principal.Principal) time.Time {
	if t := s.tokens[p.Token]; t != nil && t.expires != 0 {
		return time.UnixMicro(t.expires)
	}
	return time.Time{}
}
