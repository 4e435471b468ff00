// Package oidctest is an issuer of tokens for tests, which can also do wrong. test/oidc has a real one.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// Audience is one of those that tokens are for.
const Audience = "cell"

// Issuer serves a discovery document and keys.
type Issuer struct {
	// URL is the issuer's name, and where it is.
	URL string

	tb  testing.TB
	now time.Time

	mu      sync.Mutex
	keys    []jose.JSONWebKey // private
	away    bool
	answer  []byte // in place of the keys; nil for them
	answers int
}

// New starts an issuer with private keys, whose tokens are issued at a time.
func New(tb testing.TB, now time.Time, keys ...jose.JSONWebKey) *Issuer {
	i := &Issuer{tb: tb, now: now, keys: keys}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", i.serve(func() []byte {
		return fmt.Appendf(nil, `{"issuer": %q, "jwks_uri": %q}`, i.URL, i.URL+"/keys")
	}))
	mux.HandleFunc("/keys", i.serve(func() []byte {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.answers++
		if i.answer != nil {
			return i.answer
		}
		return i.keySet()
	}))
	server := httptest.NewServer(mux)
	tb.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

func (i *Issuer) serve(answer func() []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		away := i.away
		i.mu.Unlock()
		if away {
			http.Error(w, "away", http.StatusBadGateway)
			return
		}
		_, _ = w.Write(answer())
	}
}

// SetAway has it answer nothing but errors, or not.
func (i *Issuer) SetAway(away bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.away = away
}

// SetKeys gives it other private keys.
func (i *Issuer) SetKeys(keys ...jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

// SetAnswer has it answer with something in place of its keys.
func (i *Issuer) SetAnswer(answer []byte) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.answer = answer
}

// Answers counts the requests for keys that it has answered.
func (i *Issuer) Answers() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.answers
}

// KeySet returns its public keys.
func (i *Issuer) KeySet() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.keySet()
}

func (i *Issuer) keySet() []byte {
	var set jose.JSONWebKeySet
	for _, k := range i.keys {
		set.Keys = append(set.Keys, k.Public())
	}
	text, err := json.Marshal(set)
	if err != nil {
		i.tb.Error(err)
	}
	return text
}

// Claims are right ones of ada, with others over them; nil takes one out.
func (i *Issuer) Claims(over map[string]any) map[string]any {
	c := map[string]any{
		"iss": i.URL, "aud": []string{"other", Audience}, "sub": "ada", "exp": i.now.Add(time.Hour).Unix(), "iat": i.now.Unix(), "groups": []string{"web", "db"}, "jti": "t1",
	}
	for name, v := range over {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	return c
}

// NewKey makes a private key for RS256, ES256 or EdDSA.
func NewKey(tb testing.TB, id string, alg jose.SignatureAlgorithm) jose.JSONWebKey {
	tb.Helper()
	var private any
	var err error
	switch alg {
	case jose.RS256:
		private, err = rsa.GenerateKey(rand.Reader, 2048) //nolint:forbidigo // a key is no draw that is to be repeated
	case jose.ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader) //nolint:forbidigo // a key is no draw that is to be repeated
	case jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader) //nolint:forbidigo // a key is no draw that is to be repeated
	default:
		err = fmt.Errorf("no key for %s", alg)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: string(alg), Use: "sig"}
}

// Sign signs claims with a key, with headers beside its own.
func Sign(tb testing.TB, k jose.JSONWebKey, alg jose.SignatureAlgorithm, claims map[string]any, headers map[jose.HeaderKey]any) string {
	tb.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: k}, &jose.SignerOptions{ExtraHeaders: headers})
	if err != nil {
		tb.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
