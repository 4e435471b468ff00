package oidc

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/base/config"
	"scribe/internal/cell/access"
	"scribe/internal/cell/oidc/oidctest"
	"scribe/internal/transport/certificates"
	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/principal"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// clock is a clock that stands until it is set.
type clock struct{ now atomic.Pointer[time.Time] }

func newClock() *clock {
	c := new(clock)
	c.set(noon)
	return c
}
func (c *clock) set(now time.Time) { c.now.Store(&now) }
func (c *clock) Now() time.Time    { return *c.now.Load() }

func configOf(i *oidctest.Issuer) Config {
	c := config.Defaults[Config]()
	c.Issuer, c.Audiences, c.RolesClaim, c.RefetchEvery = i.URL, []string{oidctest.Audience}, "groups", 10*time.Millisecond
	return c
}

// start runs a verifier that has fetched keys, or failed to.
func start(t testing.TB, cfg Config, deps Deps) *Verifier {
	t.Helper()
	v, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = v.Run(context.WithoutCancel(t.Context())) }()
	t.Cleanup(func() { _ = v.Close(context.WithoutCancel(t.Context())) })
	<-v.Tried()
	return v
}

func verify(t testing.TB, v *Verifier, text string) (principal.Principal, access.Cause, error) {
	t.Helper()
	p, err := v.Verify(t.Context(), text, sha256.Sum256([]byte(text)))
	if err == nil {
		return p, access.Allowed, nil
	}
	refused, ok := errors.AsType[*access.TokenError](err)
	if !ok {
		t.Fatalf("%v is no TokenError", err)
	}
	return p, refused.Cause, err
}

// TestVerify: a right token of each algorithm proves its principal and roles until its end; anything that is wrong about one proves nothing, and its cause says what.
func TestVerify(t *testing.T) {
	rs, es, ed := oidctest.NewKey(t, "rs", jose.RS256), oidctest.NewKey(t, "es", jose.ES256), oidctest.NewKey(t, "ed", jose.EdDSA)
	i := oidctest.New(t, noon, rs, es, ed)
	cfg := configOf(i)
	cfg.Require = []string{"tenant=blue", "verified"}
	v := start(t, cfg, Deps{Now: newClock().Now})
	right := map[string]any{"tenant": []string{"red", "blue"}, "verified": true}
	with := func(over map[string]any) map[string]any {
		all := maps.Clone(right)
		maps.Copy(all, over)
		return i.Claims(all)
	}
	for alg, k := range map[jose.SignatureAlgorithm]jose.JSONWebKey{jose.RS256: rs, jose.ES256: es, jose.EdDSA: ed} {
		text := oidctest.Sign(t, k, alg, with(nil), map[jose.HeaderKey]any{"typ": "at+jwt"})
		for range 2 { // the second one is remembered
			p, cause, err := verify(t, v, text)
			if cause != access.Allowed {
				t.Fatalf("%s: %v", alg, err)
			}
			if p.Kind != principal.Client || p.Name != "oidc:ada" || p.Token != "" || p.TokenID() != "t1" || !slices.Equal(p.Issued.Roles, []string{"role:oidc:db", "role:oidc:web"}) || !p.Issued.Expires.Equal(noon.Add(time.Hour)) {
				t.Errorf("%s: %+v, %+v", alg, p, p.Issued)
			}
		}
	}
	if got := testutil.ToFloat64(v.verified); got != 3 {
		t.Errorf("%v signatures were verified", got)
	}

	public, err := json.Marshal(rs.Public())
	if err != nil {
		t.Fatal(err)
	}
	hmacSigner, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: public, KeyID: "rs"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(with(nil))
	if err != nil {
		t.Fatal(err)
	}
	confused, err := hmacSigner.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	confusedText, err := confused.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	unsigned := encode([]byte(`{"alg":"none"}`)) + "." + encode(payload) + "."
	good := oidctest.Sign(t, es, jose.ES256, with(nil), nil)
	head, rest, _ := strings.Cut(good, ".")
	_, signature, _ := strings.Cut(rest, ".")
	admin, err := json.Marshal(with(map[string]any{"sub": "admin"}))
	if err != nil {
		t.Fatal(err)
	}
	stranger := oidctest.NewKey(t, "es", jose.ES256)
	other := stranger
	other.KeyID = "elsewhere"
	esClaims := func(over map[string]any) string { return oidctest.Sign(t, es, jose.ES256, with(over), nil) }
	many := make([]string, maxRoles+1)
	for n := range many {
		many[n] = fmt.Sprintf("g%d", n)
	}
	for name, c := range map[string]struct {
		text  string
		cause access.Cause
	}{
		"nothing":                      {"", access.BadToken},
		"dots":                         {"..", access.BadAlgorithm},
		"too long":                     {good + strings.Repeat("A", maxToken), access.BadToken},
		"not signed":                   {unsigned, access.BadAlgorithm},
		"the public key as a secret":   {confusedText, access.BadAlgorithm},
		"an algorithm not accepted":    {oidctest.Sign(t, rs, jose.RS512, with(nil), nil), access.BadAlgorithm},
		"another algorithm of the key": {oidctest.Sign(t, rs, jose.PS256, with(nil), nil), access.UnknownKey},
		"claims of another token":      {head + "." + encode(admin) + "." + signature, access.BadSignature},
		"no signature":                 {head + "." + encode(admin) + ".", access.BadSignature},
		"a stranger's key":             {oidctest.Sign(t, stranger, jose.ES256, with(nil), nil), access.BadSignature},
		"an unknown key":               {oidctest.Sign(t, other, jose.ES256, with(nil), nil), access.UnknownKey},
		"of a logout":                  {oidctest.Sign(t, es, jose.ES256, with(nil), map[jose.HeaderKey]any{"typ": "logout+jwt"}), access.BadToken},
		"of an event":                  {esClaims(map[string]any{"events": map[string]any{}}), access.BadToken},
		"other spare bits":             {withSpareBit(good), access.BadToken},
		"a line feed":                  {head + ".\n" + rest, access.BadToken},
		"an extension":                 {oidctest.Sign(t, es, jose.ES256, with(nil), map[jose.HeaderKey]any{"crit": []string{"b64"}, "b64": true}), access.BadToken},
		"expired":                      {esClaims(map[string]any{"exp": noon.Unix()}), access.Expired},
		"expired within the skew":      {esClaims(map[string]any{"exp": noon.Unix() - 1}), access.Expired},
		"without an end":               {esClaims(map[string]any{"exp": nil}), access.BadClaims},
		"an end that is no time":       {esClaims(map[string]any{"exp": "soon"}), access.BadClaims},
		"an end beyond all times":      {esClaims(map[string]any{"exp": 1e300}), access.BadClaims},
		"not valid yet":                {esClaims(map[string]any{"nbf": noon.Unix() + 31}), access.NotYetValid},
		"from the future":              {esClaims(map[string]any{"iat": noon.Unix() + 31}), access.NotYetValid},
		"within the skew":              {esClaims(map[string]any{"nbf": noon.Unix() + 30, "iat": noon.Unix() + 30}), access.Allowed},
		"another issuer":               {esClaims(map[string]any{"iss": i.URL + "/"}), access.WrongIssuer},
		"no issuer":                    {esClaims(map[string]any{"iss": nil}), access.WrongIssuer},
		"another audience":             {esClaims(map[string]any{"aud": "cells"}), access.WrongAudience},
		"no audience":                  {esClaims(map[string]any{"aud": nil}), access.WrongAudience},
		"an audience that is no text":  {esClaims(map[string]any{"aud": []any{1}}), access.WrongAudience},
		"one audience":                 {esClaims(map[string]any{"aud": "cell"}), access.Allowed},
		"a claim is missing":           {esClaims(map[string]any{"verified": nil}), access.BadClaims},
		"a claim has another value":    {esClaims(map[string]any{"tenant": "bluer"}), access.BadClaims},
		"nobody":                       {esClaims(map[string]any{"sub": nil}), access.BadClaims},
		"a number":                     {esClaims(map[string]any{"sub": 7}), access.BadClaims},
		"a line":                       {esClaims(map[string]any{"sub": "a\nb"}), access.BadClaims},
		"a long name":                  {esClaims(map[string]any{"sub": strings.Repeat("a", 256)}), access.BadClaims},
		"too many roles":               {esClaims(map[string]any{"groups": many}), access.BadClaims},
		"roles that are none":          {esClaims(map[string]any{"groups": map[string]any{}}), access.BadClaims},
	} {
		if _, cause, err := verify(t, v, c.text); cause != c.cause {
			t.Errorf("%s: %q (%v), want %q", name, cause, err, c.cause)
		}
	}
}

// TestClaimNames: names come from the claim that the configuration says, also in objects; an address counts only if the issuer has verified it, and nobody is called like a role.
func TestClaimNames(t *testing.T) {
	es := oidctest.NewKey(t, "es", jose.ES256)
	i := oidctest.New(t, noon, es)
	for name, c := range map[string]struct {
		change      func(*Config)
		claims      map[string]any
		want, roles string // "" = it proves nothing
	}{
		"in an object":           {func(c *Config) { c.PrincipalClaim, c.RolesClaim = "user.name", "realm_access.roles" }, map[string]any{"user": map[string]any{"name": "eva"}, "realm_access": map[string]any{"roles": []string{"x"}}}, "oidc:eva", "role:oidc:x"},
		"a name with dots":       {func(c *Config) { c.RolesClaim = "https://e.example/roles" }, map[string]any{"https://e.example/roles": "one two"}, "oidc:ada", "role:oidc:one two"},
		"scopes":                 {func(c *Config) { c.RolesClaim = "scope" }, map[string]any{"scope": "one two"}, "oidc:ada", "role:oidc:one,role:oidc:two"},
		"no roles":               {func(c *Config) { c.RolesClaim = "" }, nil, "oidc:ada", ""},
		"roles that can't be":    {nil, map[string]any{"groups": []string{"", "a\nb", "x", "x"}}, "oidc:ada", "role:oidc:x"},
		"an address":             {func(c *Config) { c.PrincipalClaim = "email" }, map[string]any{"email": "a@e.example", "email_verified": true, "groups": nil}, "oidc:a@e.example", ""},
		"an unverified address":  {func(c *Config) { c.PrincipalClaim = "email" }, map[string]any{"email": "a@e.example"}, "", ""},
		"without a prefix":       {func(c *Config) { c.Prefix, c.RolesClaim = "", "" }, nil, "ada", ""},
		"a role without prefix":  {func(c *Config) { c.Prefix = "" }, map[string]any{"sub": "role:admin"}, "", ""},
		"a role behind a prefix": {func(c *Config) { c.RolesClaim = "" }, map[string]any{"sub": "role:admin"}, "oidc:role:admin", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configOf(i)
			if c.change != nil {
				c.change(&cfg)
			}
			v := start(t, cfg, Deps{Now: newClock().Now})
			p, cause, err := verify(t, v, oidctest.Sign(t, es, jose.ES256, i.Claims(c.claims), nil))
			if p.Name != c.want || (c.want == "") != (cause == access.BadClaims) {
				t.Errorf("%+v, %v, want %q", p, err, c.want)
			}
			if p.Issued != nil && strings.Join(p.Issued.Roles, ",") != c.roles {
				t.Errorf("roles %v, want %q", p.Issued.Roles, c.roles)
			}
		})
	}
}

// TestTokenEnds: a token that is remembered ends with its time, and with its key.
func TestTokenEnds(t *testing.T) {
	former, next := oidctest.NewKey(t, "former", jose.ES256), oidctest.NewKey(t, "next", jose.ES256)
	i, now := oidctest.New(t, noon, former), newClock()
	v := start(t, configOf(i), Deps{Now: now.Now})
	text := oidctest.Sign(t, former, jose.ES256, i.Claims(nil), nil)
	p, cause, err := verify(t, v, text)
	if cause != access.Allowed {
		t.Fatal(err)
	}
	i.SetKeys(former, next)
	if _, cause, err := verify(t, v, oidctest.Sign(t, next, jose.ES256, i.Claims(nil), nil)); cause != access.Allowed {
		t.Errorf("a token of a new key: %v", err)
	}
	if _, cause, err := verify(t, v, text); cause != access.Allowed || p.Issued.Ended(now.Now()) {
		t.Errorf("a token of a key that the issuer still has: %v", err)
	}
	i.SetKeys(next)
	last := oidctest.NewKey(t, "last", jose.ES256)
	_, _, _ = verify(t, v, oidctest.Sign(t, last, jose.ES256, i.Claims(nil), nil)) // has keys fetched
	if _, cause, _ := verify(t, v, text); cause != access.UnknownKey || !p.Issued.WithoutKey() {
		t.Errorf("a token of a key that was withdrawn: %q", cause)
	}
	text = oidctest.Sign(t, next, jose.ES256, i.Claims(nil), nil)
	if _, cause, err = verify(t, v, text); cause != access.Allowed {
		t.Fatal(err)
	}
	now.set(noon.Add(time.Hour))
	if _, cause, _ := verify(t, v, text); cause != access.Expired {
		t.Errorf("a token at its end: %q", cause)
	}
}

// TestUnknownKeys: however many tokens of unknown keys come, the issuer is not asked before its time, none of them is refused before it has answered, and no more wait than
// the bound says. Tokens of keys that are known do not wait with them.
func TestUnknownKeys(t *testing.T) {
	known := oidctest.NewKey(t, "known", jose.ES256)
	i := oidctest.New(t, noon, known)
	cfg := configOf(i)
	cfg.RefetchEvery = time.Minute // no second fetch in this test, unless something is wrong
	v := start(t, cfg, Deps{Now: newClock().Now})
	before := i.Answers()
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	causes := make(chan access.Cause, maxWaiting+100)
	for n := range maxWaiting + 100 {
		stranger := oidctest.NewKey(t, fmt.Sprintf("k%d", n), jose.ES256)
		text := oidctest.Sign(t, stranger, jose.ES256, i.Claims(nil), nil)
		waiting.Go(func() {
			_, err := v.Verify(ctx, text, sha256.Sum256([]byte(text)))
			refused, _ := errors.AsType[*access.TokenError](err)
			causes <- refused.Cause
		})
	}
	for range 100 { // those beyond the bound do not wait
		if cause := <-causes; cause != access.NotKnown {
			t.Errorf("beyond the bound: %q", cause)
		}
	}
	if _, cause, err := verify(t, v, oidctest.Sign(t, known, jose.ES256, i.Claims(nil), nil)); cause != access.Allowed {
		t.Errorf("a token of a known key waits for them: %v", err)
	}
	cancel()
	waiting.Wait()
	close(causes)
	for cause := range causes {
		if cause != access.NotKnown {
			t.Errorf("nobody has asked the issuer, and it is refused: %q", cause)
		}
	}
	if n := i.Answers() - before; n != 0 {
		t.Errorf("%d fetches within the pause", n)
	}
}

// TestIssuerAway: keys that are known go on while the issuer is away, also after a restart, and health says so. Tokens of other keys are not refused: nobody knows.
func TestIssuerAway(t *testing.T) {
	k, next := oidctest.NewKey(t, "k", jose.ES256), oidctest.NewKey(t, "next", jose.ES256)
	i := oidctest.New(t, noon, k)
	deps := Deps{Now: newClock().Now, File: filepath.Join(t.TempDir(), "oidc-keys")}
	v := start(t, configOf(i), deps)
	if err := v.Err(); err != nil {
		t.Fatal(err)
	}
	i.SetAway(true)
	known, unknown := oidctest.Sign(t, k, jose.ES256, i.Claims(nil), nil), oidctest.Sign(t, next, jose.ES256, i.Claims(nil), nil)
	check := func(what string, v *Verifier) {
		t.Helper()
		if _, cause, _ := verify(t, v, unknown); cause != access.NotKnown {
			t.Errorf("%s, a token of an unknown key: %q", what, cause)
		}
		if _, cause, err := verify(t, v, known); cause != access.Allowed {
			t.Errorf("%s, a token of a known key: %v", what, err)
		}
		if err := v.Err(); err == nil || !strings.Contains(err.Error(), "502") {
			t.Errorf("%s, health says %v", what, err)
		}
	}
	check("away", v)
	restarted := start(t, configOf(i), deps)
	check("after a restart", restarted)
	other := configOf(i)
	other.Keys = i.URL + "/keys"
	if elsewhere := start(t, other, deps); elsewhere.keys.current.Load() != nil {
		t.Error("keys that were kept of one place count for another")
	}
	i.SetAway(false)
	i.SetKeys(k, next)
	if _, cause, err := verify(t, restarted, unknown); cause != access.Allowed || restarted.Err() != nil {
		t.Errorf("when it is back: %v, %v", err, restarted.Err())
	}
	for _, kept := range []string{"", "{", string(i.KeySet()), "1\n{", strings.Repeat("x", maxAnswer+1)} {
		if err := os.WriteFile(restarted.keys.file, []byte(kept), 0o600); err != nil {
			t.Fatal(err)
		}
		if v, err := New(configOf(i), deps); err != nil || v.keys.current.Load() != nil {
			t.Errorf("with %.10q as the copy: %v", kept, err)
		}
	}
}

// TestAllWithdrawn: an issuer that takes back its last key has said so: what it signed proves nothing from then on, also after a restart, and health says why.
func TestAllWithdrawn(t *testing.T) {
	k, next := oidctest.NewKey(t, "k", jose.ES256), oidctest.NewKey(t, "next", jose.ES256)
	i := oidctest.New(t, noon, k)
	deps := Deps{Now: newClock().Now, File: filepath.Join(t.TempDir(), "oidc-keys")}
	v := start(t, configOf(i), deps)
	text, unknown := oidctest.Sign(t, k, jose.ES256, i.Claims(nil), nil), oidctest.Sign(t, next, jose.ES256, i.Claims(nil), nil)
	p, cause, err := verify(t, v, text)
	if cause != access.Allowed {
		t.Fatal(err)
	}
	i.SetKeys()
	if _, cause, _ := verify(t, v, unknown); cause != access.UnknownKey { // has keys fetched
		t.Errorf("a token of an unknown key: %q", cause)
	}
	if _, cause, _ := verify(t, v, text); cause != access.UnknownKey || !p.Issued.WithoutKey() {
		t.Errorf("a token of the key that was withdrawn: %q", cause)
	}
	if err := v.Err(); err == nil || !strings.Contains(err.Error(), "no key for signatures") {
		t.Errorf("health says %v", err)
	}
	i.SetAway(true)
	if _, cause, _ := verify(t, start(t, configOf(i), deps), text); cause != access.NotKnown {
		t.Errorf("after a restart: %q", cause)
	}
	i.SetAway(false)
	i.SetKeys(next)
	if _, cause, err := verify(t, v, unknown); cause != access.Allowed || v.Err() != nil {
		t.Errorf("with a new key: %v, %v", err, v.Err())
	}
}

// TestOutdated: keys that can't be fetched again end after their time, counted from the last answer and not from the start of the process, and count again once the issuer answers.
func TestOutdated(t *testing.T) {
	k, next := oidctest.NewKey(t, "k", jose.ES256), oidctest.NewKey(t, "next", jose.ES256)
	i, now := oidctest.New(t, noon, k), newClock()
	deps := Deps{Now: now.Now, File: filepath.Join(t.TempDir(), "oidc-keys")}
	v := start(t, configOf(i), deps)
	claims := i.Claims(map[string]any{"exp": noon.Add(100 * time.Hour).Unix()})
	text, unknown := oidctest.Sign(t, k, jose.ES256, claims, nil), oidctest.Sign(t, next, jose.ES256, claims, nil)
	now.set(noon.Add(2 * time.Hour))
	_, _, _ = verify(t, v, unknown) // has keys fetched, the same ones
	i.SetAway(true)
	var old principal.Principal
	for _, c := range []struct {
		at   time.Duration
		want access.Cause
	}{{25 * time.Hour, access.Allowed}, {26 * time.Hour, access.NotKnown}} {
		now.set(noon.Add(c.at))
		for what, v := range map[string]*Verifier{"the same process": v, "after a restart": start(t, configOf(i), deps)} {
			_, _, _ = verify(t, v, unknown) // has them fetched
			p, cause, err := verify(t, v, text)
			if cause != c.want {
				t.Errorf("%v later, %s: %q, %v", c.at, what, cause, err)
			}
			if cause == access.Allowed {
				old = p
			}
		}
	}
	if _, cause, _ := verify(t, v, text); cause != access.NotKnown {
		t.Errorf("%q", cause)
	}
	if old.Issued == nil {
		t.Fatal("it never counted")
	}
	i.SetAway(false)
	if _, cause, err := verify(t, v, text); cause != access.Allowed {
		t.Errorf("once the issuer answers: %v", err)
	}
}

// TestAuthorities: the file with the issuer's authorities is read again while the process runs, and an issuer without TLS 1.3 will do.
func TestAuthorities(t *testing.T) {
	k := oidctest.NewKey(t, "k", jose.ES256)
	i := oidctest.New(t, noon, k)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(i.KeySet()) }))
	server.TLS = &tls.Config{MaxVersion: tls.VersionTLS12} //nolint:gosec // it is tried
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	cfg := configOf(i)
	cfg.Keys, cfg.CA = server.URL, filepath.Join(t.TempDir(), "ca.pem")
	write := func(der []byte) {
		if err := os.WriteFile(cfg.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := certificates.Read(certtest.New(t, "another", time.Now()).File)
	if err != nil {
		t.Fatal(err)
	}
	write(list[0].Raw)
	now := newClock()
	now.set(time.Now())
	v := start(t, cfg, Deps{Now: now.Now})
	if err := v.Err(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with another authority: %v", err)
	}
	write(server.Certificate().Raw)
	now.set(time.Now().Add(time.Minute))
	claims := i.Claims(map[string]any{"iat": nil, "exp": time.Now().Add(time.Hour).Unix()})
	if _, cause, err := verify(t, v, oidctest.Sign(t, k, jose.ES256, claims, nil)); cause != access.Allowed {
		t.Errorf("with its authority: %v", err)
	}
}

// TestKeySets: what is not a usable key is passed over, and a set that is too large or none at all is a failure that leaves the keys that there are.
func TestKeySets(t *testing.T) {
	rs, es := oidctest.NewKey(t, "rs", jose.RS256), oidctest.NewKey(t, "es", jose.ES256)
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	encoded := func(k any) string {
		b, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	encrypting := rs.Public()
	encrypting.Use = "enc"
	for name, c := range map[string]struct {
		set        string
		keys, over int // keys -1 = an error
	}{
		"both":            {`{"keys":[` + encoded(rs.Public()) + `,` + encoded(es.Public()) + `]}`, 2, 0},
		"a private key":   {`{"keys":[` + encoded(rs) + `,` + encoded(es.Public()) + `]}`, 1, 1},
		"a secret":        {`{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"s"},` + encoded(es.Public()) + `]}`, 1, 1},
		"for encryption":  {`{"keys":[` + encoded(encrypting) + `,` + encoded(es.Public()) + `]}`, 1, 1},
		"a weak key":      {`{"keys":[` + encoded(jose.JSONWebKey{Key: small.Public()}) + `,` + encoded(es.Public()) + `]}`, 1, 1},
		"a kind to come":  {`{"keys":[{"kty":"moon"},{},7,` + encoded(es.Public()) + `]}`, 1, 3},
		"none":            {`{"keys":[]}`, 0, 0},
		"not usable":      {`{"keys":[` + encoded(encrypting) + `]}`, 0, 1},
		"one twice":       {`{"keys":[` + encoded(es.Public()) + `,` + encoded(es.Public()) + `]}`, 1, 1},
		"no list":         {`{}`, -1, 0},
		"null":            {`{"keys":null}`, 0, 0},
		"no set":          {`[]`, -1, 0},
		"an error page":   {`<html>`, -1, 0},
		"too many":        {`{"keys":[` + strings.Repeat(encoded(es.Public())+",", maxKeys) + encoded(es.Public()) + `]}`, -1, 0},
		"too large":       {`{"keys":[` + encoded(es.Public()) + `]}` + strings.Repeat(" ", maxAnswer), -1, 0},
		"two names alike": {`{"keys":[` + encoded(es.Public()) + `],"keys":[]}`, -1, 0},
	} {
		set, err := parseKeys([]byte(c.set), defaultAlgorithms)
		if c.keys < 0 {
			if err == nil {
				t.Errorf("%s: %d keys", name, set.count())
			}
		} else if err != nil || set.count() != c.keys || set.passed != c.over {
			t.Errorf("%s: %d keys, %d passed over, %v", name, set.count(), set.passed, err)
		}
	}

	// What an issuer serves wrongly leaves what there is.
	i := oidctest.New(t, noon, es)
	v := start(t, configOf(i), Deps{Now: newClock().Now})
	i.SetAnswer(make([]byte, maxAnswer+1))
	if _, cause, _ := verify(t, v, oidctest.Sign(t, rs, jose.RS256, i.Claims(nil), nil)); cause != access.NotKnown {
		t.Errorf("%q", cause)
	}
	if _, cause, err := verify(t, v, oidctest.Sign(t, es, jose.ES256, i.Claims(nil), nil)); cause != access.Allowed {
		t.Error(err)
	}
}

// TestKeysWithoutNames: a token that does not say its key is signed by the issuer's only one, also by the next one.
func TestKeysWithoutNames(t *testing.T) {
	one, two := oidctest.NewKey(t, "", jose.ES256), oidctest.NewKey(t, "", jose.ES256)
	i := oidctest.New(t, noon, one)
	v := start(t, configOf(i), Deps{Now: newClock().Now})
	for _, k := range []jose.JSONWebKey{one, two} {
		i.SetKeys(k)
		if _, cause, err := verify(t, v, oidctest.Sign(t, k, jose.ES256, i.Claims(nil), nil)); cause != access.Allowed {
			t.Error(err)
		}
	}
	i.SetKeys(one, two)
	if _, cause, err := verify(t, v, oidctest.Sign(t, one, jose.ES256, i.Claims(nil), nil)); cause != access.UnknownKey || !strings.Contains(err.Error(), "several") {
		t.Errorf("%q, %v", cause, err)
	}
}

// TestKeyFile: keys come from a file as well, which is read again for a key that it did not have.
func TestKeyFile(t *testing.T) {
	k, next := oidctest.NewKey(t, "k", jose.ES256), oidctest.NewKey(t, "next", jose.ES256)
	i := oidctest.New(t, noon, k)
	cfg := configOf(i)
	cfg.Keys = filepath.Join(t.TempDir(), "keys.json")
	put := func() {
		if err := os.WriteFile(cfg.Keys, i.KeySet(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put()
	i.SetAway(true)
	v := start(t, cfg, Deps{Now: newClock().Now})
	i.SetKeys(k, next)
	put()
	for _, by := range []jose.JSONWebKey{k, next} {
		if _, cause, err := verify(t, v, oidctest.Sign(t, by, jose.ES256, i.Claims(nil), nil)); cause != access.Allowed {
			t.Error(err)
		}
	}
}

// TestRemembered: what is remembered is bounded, by number and by bytes.
func TestRemembered(t *testing.T) {
	i := oidctest.New(t, noon, oidctest.NewKey(t, "k", jose.ES256))
	v, err := New(configOf(i), Deps{Now: newClock().Now})
	if err != nil {
		t.Fatal(err)
	}
	p := principal.Principal{Kind: principal.Client, Name: "x", Issued: &principal.Issued{Expires: noon.Add(time.Hour)}}
	put := func(n, size int, p principal.Principal) {
		var sum [sha256.Size]byte
		copy(sum[:], fmt.Sprintf("%d-%d", n, size))
		v.remember(sum, p, size, noon)
	}
	for n := range maxCached + 100 {
		put(n, 10, p)
	}
	if n := len(v.mu.tokens); n != maxCached || v.mu.bytes != 10*maxCached {
		t.Errorf("%d tokens of %d bytes", n, v.mu.bytes)
	}
	for n := range maxCachedBytes/maxToken + 10 {
		put(n, maxToken, p)
	}
	if v.mu.bytes > maxCachedBytes {
		t.Errorf("%d bytes", v.mu.bytes)
	}

	// Those that have ended go first; all are looked at once in a while, and not for each token that comes.
	ended := principal.Principal{Kind: principal.Client, Name: "x", Issued: &principal.Issued{Expires: noon}}
	for _, c := range []struct {
		at   time.Duration
		left int
	}{{sweepEvery, 1}, {2*sweepEvery - 1, maxCached}, {2 * sweepEvery, 1}} {
		clear(v.mu.tokens)
		v.mu.bytes = 0
		for n := range maxCached {
			put(n, 1, ended)
		}
		var sum [sha256.Size]byte
		v.remember(sum, p, 1, noon.Add(c.at))
		if n := len(v.mu.tokens); n != c.left {
			t.Errorf("after %v %d are remembered, want %d", c.at, n, c.left)
		}
	}
}

// TestDiscovery: a document of another issuer, or with keys that somebody on the way could change, is refused.
func TestDiscovery(t *testing.T) {
	const issuer = "https://id.example.net"
	for text, want := range map[string]string{
		`{"issuer":"https://id.example.net","jwks_uri":"https://id.example.net/k"}`:   "",
		`{"issuer":"https://id.example.net/","jwks_uri":"https://id.example.net/k"}`:  "must be the same",
		`{"issuer":"https://id.example.net","jwks_uri":"http://id.example.net/k"}`:    "want https://",
		`{"issuer":"https://id.example.net","jwks_uri":"file:///etc/passwd"}`:         "want https://",
		`{"issuer":"https://id.example.net","jwks_uri":"http://127.0.0.1:7420/k"}`:    "not on this machine",
		`{"issuer":"https://id.example.net","jwks_uri":"https://localhost/k"}`:        "not on this machine",
		`{"issuer":"https://id.example.net"}`:                                         "want https://",
		`{"issuer":"https://id.example.net","issuer":"https://id.example.net"}`:       "not a discovery document",
		`{"Issuer":"https://id.example.net","jwks_uri":"https://id.example.net/key"}`: "must be the same",
	} {
		_, err := parseDiscovery([]byte(text), issuer)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestConfig: what can't work or is not safe is an error.
func TestConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"right":              {func(*Config) {}, ""},
		"nothing":            {func(c *Config) { c.Issuer, c.Audiences = "", nil }, ""},
		"without an issuer":  {func(c *Config) { c.Issuer = "" }, "Issuer: missing"},
		"for everybody":      {func(c *Config) { c.Audiences = nil }, "Audiences: missing"},
		"over http":          {func(c *Config) { c.Issuer = "http://id.example.net" }, "want https://"},
		"on this machine":    {func(c *Config) { c.Issuer = "http://127.0.0.1:5556/dex" }, ""},
		"keys over http":     {func(c *Config) { c.Keys = "http://id.example.net/keys" }, "Keys: "},
		"keys in a file":     {func(c *Config) { c.Keys = "/etc/scribe/keys.json" }, ""},
		"a shared secret":    {func(c *Config) { c.Algorithms = []string{"HS256"} }, "Algorithms: "},
		"no signature":       {func(c *Config) { c.Algorithms = []string{"RS256", "none"} }, "Algorithms: "},
		"others":             {func(c *Config) { c.Algorithms = []string{"ES512"} }, ""},
		"a claim without it": {func(c *Config) { c.Require = []string{"=x"} }, "Require: "},
		"names of roles":     {func(c *Config) { c.Prefix = "role:" }, "Prefix: "},
		"ends too early":     {func(c *Config) { c.Refresh, c.Keep = time.Hour, time.Minute }, "Keep: "},
		"a long skew":        {func(c *Config) { c.ClockSkew = time.Hour }, "ClockSkew: "},
	} {
		cfg := config.Defaults[Config]()
		cfg.Issuer, cfg.Audiences = "https://id.example.net", []string{"cell"}
		c.change(&cfg)
		err := cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// withSpareBit returns a token whose signature has the same bytes in another text: bits at the end of base64 say nothing.
func withSpareBit(text string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(text) - 1
	return text[:last] + string(alphabet[strings.IndexByte(alphabet, text[last])^1])
}

// FuzzToken: no text makes the verifier fail otherwise than with a cause, and none that was not signed proves anything.
func FuzzToken(f *testing.F) {
	k := oidctest.NewKey(f, "k", jose.ES256)
	i := oidctest.New(f, noon, k)
	cfg := configOf(i)
	cfg.RefetchEvery, cfg.Timeout = time.Minute, 100*time.Millisecond
	v := start(f, cfg, Deps{Now: newClock().Now})
	right := oidctest.Sign(f, k, jose.ES256, i.Claims(nil), nil)
	f.Add(right)
	f.Add(strings.ToUpper(right))
	f.Add(withSpareBit(right))
	f.Add(right + "\r\n")
	f.Add("..")
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "..")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := v.parse(text, noon)
		if err != nil {
			if refused, ok := errors.AsType[*access.TokenError](err); !ok || !slices.Contains(access.Causes, refused.Cause) {
				t.Errorf("%v", err)
			}
			return
		}
		by, err := tok.signedBy(v.keys.current.Load())
		if by == nil || err != nil {
			return
		}
		if text != right {
			t.Errorf("a token that nobody signed, or not like this, is taken: %q", text)
		}
		if _, err := v.principalOf(tok); err != nil {
			t.Error(err)
		}
	})
}

// FuzzKeys: no answer of an issuer makes the verifier fail, or take a key that is not public.
func FuzzKeys(f *testing.F) {
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA} {
		k := oidctest.NewKey(f, "k", alg)
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k.Public()}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"keys":[{"kty":"oct","k":"AAAA"},{"kty":"EC","crv":"P-256","x":"","y":""}]}`))
	f.Add([]byte(`{"issuer":"https://id.example.net","jwks_uri":"https://id.example.net/k"}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		if at, err := parseDiscovery(answer, "https://id.example.net"); err == nil && checkURL(at) != nil {
			t.Errorf("keys at %q", at)
		}
		if _, _, err := parseCopy(answer, defaultAlgorithms); err == nil && !bytes.ContainsRune(answer, '\n') {
			t.Errorf("a copy without a time: %q", answer)
		}
		set, err := parseKeys(answer, defaultAlgorithms)
		if err != nil {
			return
		}
		set.takeOver(set)
		for _, k := range set.keys {
			if len(k.algorithms) == 0 {
				t.Error("a key without an algorithm")
			}
			if _, private := k.public.(crypto.Signer); private {
				t.Error("a private key")
			}
		}
	})
}

// BenchmarkVerify is what a token costs that is remembered, with the hash of its text, and one that is not:
// go test -run '^$' -bench Verify ./internal/cell/oidc
func BenchmarkVerify(b *testing.B) {
	k := oidctest.NewKey(b, "k", jose.RS256)
	i := oidctest.New(b, noon, k)
	v := start(b, configOf(i), Deps{Now: newClock().Now})
	text := oidctest.Sign(b, k, jose.RS256, i.Claims(nil), nil)
	for name, forget := range map[string]bool{"remembered": false, "new": true} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if forget {
					clear(v.mu.tokens)
				}
				if _, err := v.Verify(b.Context(), text, sha256.Sum256([]byte(text))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
