package oidc

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"scribe/internal/base/config"
	"scribe/internal/cell/access"
)

// Config says which tokens of an issuer prove who calls. Without an issuer none do. Start from config.Defaults.
type Config struct {
	// Issuer is the claim iss of its tokens, and where its discovery document is.
	Issuer string `yaml:"issuer" flag:"oidc-issuer,up,serve" help:"URL of an OpenID Connect issuer whose tokens (JWT) prove who calls, as in their claim iss"`
	// Audiences are the claims aud that tokens for this cell have: one of them is enough.
	Audiences []string `yaml:"audience" flag:"oidc-audience,up,serve" help:"audience (claim aud) that its tokens must be for; several, separated by commas, for any of them"`
	// Keys is a file or URL with a JWK set; empty = where the issuer's discovery document says.
	Keys string `yaml:"keys" flag:"oidc-keys,up,serve" help:"file or URL with its public keys, a JWK set (default: where its discovery document says)"`
	// CA has the authorities of the issuer's certificate; empty = those of the machine.
	CA string `yaml:"ca" flag:"oidc-ca,up,serve" help:"file with the authorities that sign its certificate (default: those of this machine)"`
	// Algorithms are those of signatures, all of them with public keys.
	Algorithms []string `yaml:"algorithms" flag:"oidc-algorithms,up,serve" help:"algorithms of signatures that are accepted (default: RS256, PS256, ES256, ES384 and EdDSA)"`
	// PrincipalClaim has the principal's name, RolesClaim those of its roles; dots lead into objects.
	PrincipalClaim string `yaml:"principal_claim" default:"sub" required:"the name of a claim" flag:"oidc-principal-claim,up,serve" help:"claim with the name of the principal"`
	RolesClaim     string `yaml:"roles_claim" flag:"oidc-roles-claim,up,serve" help:"claim with the names of its roles, such as groups or realm_access.roles (default: none)"`
	// Prefix begins the names of principals and roles.
	Prefix string `yaml:"prefix" default:"oidc:" flag:"oidc-prefix,up,serve" help:"what the names of its principals and roles begin with in grants, so that they are not taken for others of the cell"`
	// Require are claims that tokens must have, as NAME or NAME=VALUE.
	Require []string `yaml:"require" flag:"oidc-require,up,serve" help:"claims that its tokens must have besides: NAME or NAME=VALUE; several, separated by commas, for all of them"`
	// ClockSkew is how far the issuer's clock may be ahead. The end of a token is its end.
	ClockSkew time.Duration `yaml:"clock_skew" default:"30s" min:"0s" max:"5m" flag:"oidc-clock-skew,up,serve" help:"how far its clock may be ahead of this machine's"`
	// Refresh is how often keys are fetched when nothing asks for them: as long a key that the issuer has withdrawn counts.
	Refresh time.Duration `yaml:"refresh" default:"5m" min:"1s" max:"24h" flag:"oidc-refresh,up,serve" help:"how often its keys are fetched: how long one counts that it has withdrawn"`
	// Keep is how long keys count that can't be fetched again.
	Keep time.Duration `yaml:"keep" default:"24h" min:"1m" max:"8760h" flag:"oidc-keep,up,serve" help:"how long its keys count while they can't be fetched again"`
	// RefetchEvery is the least time between two fetches for tokens with unknown keys.
	RefetchEvery time.Duration `yaml:"refetch_every" default:"1s" min:"10ms" max:"1m" flag:"oidc-refetch-every,up,serve" help:"least time between two fetches of its keys for tokens whose keys are not known"`
	// Timeout bounds a fetch, and how long a request waits for it.
	Timeout time.Duration `yaml:"timeout" default:"5s" min:"100ms" max:"1m" flag:"oidc-timeout,up,serve" help:"time limit of a fetch of its keys"`
}

// Bounds of what comes from outside.
const (
	// maxToken bounds the text of a token: with less, the roles of large organisations do not fit.
	maxToken = 16 << 10
	// maxAnswer bounds a discovery document and a JWK set.
	maxAnswer = 512 << 10
	// maxKeys bounds the keys of a JWK set.
	maxKeys = 100
	// maxRoles bounds the roles that a token gives, which a check may look through.
	maxRoles = 128
	// maxWaiting bounds the requests that wait for a fetch of keys.
	maxWaiting = 1000
	// maxCached and maxCachedBytes bound the tokens whose verification is remembered, and their texts together.
	maxCached      = 10_000
	maxCachedBytes = 16 << 20
	// minRSA and maxRSA are the sizes of RSA keys in bits: smaller ones are weak, larger ones slow to verify with, and not read by go-jose.
	minRSA, maxRSA = 2048, 4096
)

// algorithms are those that can be accepted. None of them takes a key that others know: with HS256 everybody who has the public key could sign.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// defaultAlgorithms are accepted where the configuration says nothing.
var defaultAlgorithms = []jose.SignatureAlgorithm{jose.RS256, jose.PS256, jose.ES256, jose.ES384, jose.EdDSA}

// IsSet reports whether there is an issuer.
func (c *Config) IsSet() bool { return c.Issuer != "" }

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("oidc", c, nil)
	if !c.IsSet() {
		if len(c.Audiences) > 0 || c.Keys != "" {
			v.Add("Issuer", "missing: want the URL of an issuer")
		}
		return v.Err()
	}
	if err := checkURL(c.Issuer); err != nil {
		v.Add("Issuer", "%w", err)
	}
	if len(c.Audiences) == 0 {
		v.Add("Audiences", "missing: without it tokens that the issuer made for others would open this cell")
	}
	if isURL(c.Keys) {
		if err := checkURL(c.Keys); err != nil {
			v.Add("Keys", "%w", err)
		}
	}
	for _, name := range c.Algorithms {
		if !slices.Contains(algorithms, jose.SignatureAlgorithm(name)) {
			v.Add("Algorithms", "invalid value %q: want some of %v", name, algorithms)
		}
	}
	for _, claim := range c.Require {
		if name, _, _ := strings.Cut(claim, "="); name == "" {
			v.Add("Require", "invalid value %q: want NAME or NAME=VALUE", claim)
		}
	}
	if err := access.CheckPrincipal(c.Prefix + "x"); err != nil || access.IsRole(c.Prefix) {
		v.Add("Prefix", "invalid value %q: want what names can begin with", c.Prefix)
	}
	if c.Keep < c.Refresh {
		v.Add("Keep", "%v is less than Refresh, %v: keys would end before they are fetched again", c.Keep, c.Refresh)
	}
	return v.Err()
}

// accepted returns the algorithms that are accepted.
func (c *Config) accepted() []jose.SignatureAlgorithm {
	if len(c.Algorithms) == 0 {
		return defaultAlgorithms
	}
	list := make([]jose.SignatureAlgorithm, len(c.Algorithms))
	for i, name := range c.Algorithms {
		list[i] = jose.SignatureAlgorithm(name)
	}
	return list
}

func isURL(text string) bool { return strings.Contains(text, "://") }

// checkURL checks where keys are fetched. Whoever could change them on the way could be anybody.
func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("invalid value %q: want https://host", text)
	case u.User != nil || u.Fragment != "":
		return fmt.Errorf("invalid value %q: want a URL without a password or a fragment", text)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("invalid value %q: want https://, since whoever is on the way could give other keys", text)
	}
	return nil
}

// checkOnward checks where an issuer sends who fetches its keys. One elsewhere has no business with this machine's own services.
func checkOnward(issuer, to string) error {
	if err := checkURL(to); err != nil {
		return err
	}
	from, err := url.Parse(issuer)
	if err != nil {
		return err
	}
	if u, err := url.Parse(to); err != nil || isLoopback(u.Hostname()) && !isLoopback(from.Hostname()) {
		return fmt.Errorf("invalid value %q: the issuer is not on this machine, and its keys can't be there", to)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
