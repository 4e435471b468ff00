package oidc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/metrics"
	"scribe/internal/cell/access"
	"scribe/internal/transport/principal"
)

// Deps are what a verifier works with.
type Deps struct {
	// File begins the name of the file with the keys that were fetched last; empty = they are not kept.
	File string
	// FS is its file system; nil means the machine's.
	FS vfs.FS
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Verifier says whom tokens of an issuer name. Its methods are safe for concurrent use.
type Verifier struct {
	cfg  Config
	now  func() time.Time
	keys *keySource
	ran  chan struct{} // closed when Run has ended
	stop context.CancelFunc
	life context.Context // ends with Close

	verified prometheus.Counter

	mu struct {
		sync.Mutex
		// tokens are those that were verified, by the hash of their texts; bytes is how long these are together.
		tokens map[[sha256.Size]byte]verifiedToken
		bytes  int
		// swept is when those that have ended were looked for.
		swept time.Time
	}
}

// verifiedToken is what is remembered of a token. Its principal has everything that can end it.
type verifiedToken struct {
	principal principal.Principal
	size      int
}

// New returns a verifier, with the keys that a former process has kept. Run fetches others.
func New(cfg Config, deps Deps) (*Verifier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.IsSet() {
		return nil, errors.New("oidc: Config.Issuer is missing")
	}
	deps.Logger = cmp.Or(deps.Logger, slog.New(slog.DiscardHandler))
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.FS == nil {
		deps.FS = vfs.Default
	}
	keys, err := newKeySource(cfg, deps)
	if err != nil {
		return nil, err
	}
	v := &Verifier{cfg: cfg, now: deps.Now, keys: keys, ran: make(chan struct{})}
	v.life, v.stop = context.WithCancel(context.Background())
	v.mu.tokens = make(map[[sha256.Size]byte]verifiedToken)
	set := metrics.NewSet("scribe_oidc_")
	v.verified = set.Counter("verified_total", "Tokens of the issuer whose signature was verified; those that are remembered are not verified again.")
	set.GaugeFunc("keys", "Keys of the issuer that are known.", func() float64 { return float64(keys.current.Load().count()) })
	set.GaugeFunc("tokens", "Tokens whose verification is remembered.", func() float64 {
		v.mu.Lock()
		defer v.mu.Unlock()
		return float64(len(v.mu.tokens))
	})
	set.CounterFunc("key_fetches_total", "Fetches of the issuer's keys.", func() float64 { return float64(keys.fetches.Load()) })
	set.CounterFunc("key_fetch_failures_total", "Fetches of the issuer's keys that failed: the keys that are known go on.", func() float64 { return float64(keys.failures.Load()) })
	set.GaugeFunc("keys_fetched_seconds", "When the issuer's keys were fetched last, in Unix seconds; 0 if never.", func() float64 { return float64(keys.fetched.Load()) })
	if err := set.Register(deps.Registerer); err != nil {
		return nil, fmt.Errorf("oidc: %w", err)
	}
	return v, nil
}

// Run keeps the keys current until ctx ends or Close is called.
func (v *Verifier) Run(ctx context.Context) error {
	defer close(v.ran)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.life, cancel)()
	v.keys.run(ctx)
	return nil
}

// Close ends Run, which must have been called, and waits for it.
func (v *Verifier) Close(ctx context.Context) error {
	v.stop()
	select {
	case <-v.ran:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Err returns why the keys are not current; nil if they are.
func (v *Verifier) Err() error { return v.keys.err() }

// Tried is closed once Run has fetched keys, or failed to.
func (v *Verifier) Tried() <-chan struct{} { return v.keys.tried }

func denial(cause access.Cause, format string, args ...any) error {
	return &access.TokenError{Cause: cause, Err: fmt.Errorf(format, args...)}
}

// Verify returns whom a token names, a client, or an *access.TokenError. sum is the SHA-256 of its text. It waits for keys only if the token is signed by one that
// is not known.
func (v *Verifier) Verify(ctx context.Context, text string, sum [sha256.Size]byte) (principal.Principal, error) {
	now := v.now()
	if p, ok := v.remembered(sum, now); ok {
		return p, nil
	}
	t, err := v.parse(text, now)
	if err != nil {
		return principal.Principal{}, err
	}
	k, err := v.verifySignature(ctx, t)
	if err != nil {
		return principal.Principal{}, err
	}
	v.verified.Inc()
	p, err := v.principalOf(t)
	if err != nil {
		return principal.Principal{}, err
	}
	p.Issued.Withdrawn = k.withdrawn
	v.remember(sum, p, len(text), now)
	return p, nil
}

// token is a token that is not verified yet.
type token struct {
	signed *jose.JSONWebSignature
	id     string // of its key
	alg    jose.SignatureAlgorithm
	claims claims
	ends   time.Time
}

// parse reads a token, and refuses what no key can mend before one is looked for.
func (v *Verifier) parse(text string, now time.Time) (*token, error) {
	if len(text) > maxToken {
		return nil, denial(access.BadToken, "it has %d bytes, the limit is %d", len(text), maxToken)
	}
	signed, err := jose.ParseSignedCompact(text, v.keys.accepted)
	if unexpected, ok := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); ok {
		return nil, denial(access.BadAlgorithm, "it is signed with %q, and accepted are %v", shorten(string(unexpected.Got)), v.keys.accepted)
	}
	if err != nil {
		return nil, denial(access.BadToken, "it is not a signed token: %s", shorten(err.Error()))
	}
	// Decoders pass over line feeds and spare bits: each way to write a token would be verified and remembered by itself.
	if !isCanonical(text) {
		return nil, denial(access.BadToken, "it is not written as its signer wrote it: its parts are not base64 for URLs without padding")
	}
	header := signed.Signatures[0].Protected
	if typ, ok := header.ExtraHeaders[jose.HeaderType]; ok && !isTokenType(typ) {
		return nil, denial(access.BadToken, "it is of the type %.50q, and no JWT", fmt.Sprint(typ))
	}
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, ok := header.ExtraHeaders[name]; ok {
			return nil, denial(access.BadToken, "it asks for an extension of JWS (%s)", name)
		}
	}
	t := &token{signed: signed, id: header.KeyID, alg: jose.SignatureAlgorithm(header.Algorithm)}
	if t.claims, err = parseClaims(signed.UnsafePayloadWithoutVerification()); err != nil {
		return nil, denial(access.BadToken, "its claims are damaged: %s", shorten(err.Error()))
	}
	if _, ok := t.claims["events"]; ok {
		return nil, denial(access.BadToken, "it tells of an event, such as a logout (claim events), and proves nobody")
	}
	t.ends, err = v.checkClaims(t.claims, now)
	return t, err
}

// isCanonical reports whether the parts of a token are what their bytes are encoded to.
func isCanonical(text string) bool {
	for part := range strings.SplitSeq(text, ".") {
		decoded, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || base64.RawURLEncoding.EncodeToString(decoded) != part {
			return false
		}
	}
	return true
}

// isTokenType reports whether the type in a header is that of tokens which prove who somebody is. Others, such as those of a logout, have signatures of the same keys.
func isTokenType(typ any) bool {
	text, ok := typ.(string)
	text = strings.TrimPrefix(strings.ToLower(text), "application/")
	return ok && (text == "jwt" || text == "at+jwt")
}

// verifySignature returns the key that has signed a token. A key that is not known may be a new one of the issuer's: then keys are fetched.
func (v *Verifier) verifySignature(ctx context.Context, t *token) (*key, error) {
	set := v.keys.current.Load()
	k, err := t.signedBy(set)
	if k != nil {
		return k, nil
	}
	if t.id != "" && err != nil { // it is the key that the token names
		return nil, err
	}
	if err := v.keys.awaitFetch(ctx); err != nil {
		return nil, denial(access.NotKnown, "its key %q is not known, and the issuer does not say: %w", shorten(t.id), err)
	}
	again := v.keys.current.Load()
	if err == nil || again != set {
		k, err = t.signedBy(again)
	}
	if k == nil && err == nil {
		err = denial(access.UnknownKey, "its key %q is not one of the issuer's", shorten(t.id))
	}
	return k, err
}

// signedBy returns the key of a set that has signed the token; nil if the set does not have the key, and an error if that has not.
func (t *token) signedBy(set *keySet) (*key, error) {
	k, err := set.find(t.id, t.alg)
	switch {
	case err != nil:
		return nil, denial(access.UnknownKey, "%w", err)
	case k == nil:
		return nil, nil //nolint:nilnil // not known
	}
	if _, err := t.signed.Verify(k.public); err != nil {
		return nil, denial(access.BadSignature, "its signature is not of the issuer's key %q", shorten(k.id))
	}
	return k, nil
}

// remembered returns whom a token names that was verified before, and still holds.
func (v *Verifier) remembered(sum [sha256.Size]byte, now time.Time) (principal.Principal, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, ok := v.mu.tokens[sum]
	if ok && t.principal.Issued.Ended(now) {
		v.forget(sum, t)
		return principal.Principal{}, false
	}
	return t.principal, ok
}

// sweepEvery is the least time between two looks at all that is remembered, during which requests wait.
const sweepEvery = time.Minute

// remember keeps what was found out about a token, and forgets others where there are too many: those that have ended, if that was not done a moment ago, else any.
func (v *Verifier) remember(sum [sha256.Size]byte, p principal.Principal, size int, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if t, ok := v.mu.tokens[sum]; ok {
		v.forget(sum, t)
	}
	if since := now.Sub(v.mu.swept); v.isFull(size) && (since < 0 || since >= sweepEvery) {
		v.mu.swept = now
		for other, t := range v.mu.tokens {
			if t.principal.Issued.Ended(now) {
				v.forget(other, t)
			}
		}
	}
	for other, t := range v.mu.tokens {
		if !v.isFull(size) {
			break
		}
		v.forget(other, t)
	}
	v.mu.tokens[sum] = verifiedToken{p, size}
	v.mu.bytes += size
}

func (v *Verifier) isFull(size int) bool {
	return len(v.mu.tokens) >= maxCached || v.mu.bytes+size > maxCachedBytes
}

func (v *Verifier) forget(sum [sha256.Size]byte, t verifiedToken) {
	delete(v.mu.tokens, sum)
	v.mu.bytes -= t.size
}
