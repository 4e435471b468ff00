package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// key is a public key of the issuer.
type key struct {
	id     string
	public any
	// algorithms are those that the key is for. They follow from what it is, whatever a token says.
	algorithms []jose.SignatureAlgorithm
	// print tells it from others, also from one that gets its id.
	print [sha256.Size]byte
	// withdrawn is closed when the issuer no longer has the key: what it signed proves nothing from then on.
	withdrawn chan struct{}
}

// keySet are the keys of the issuer. It never changes.
type keySet struct {
	keys []*key
	// answer is what they were read from.
	answer []byte
	// passed counts keys that are not used: of other kinds or for other purposes.
	passed int
}

// parseKeys reads a JWK set, of which it uses the keys for signatures by some algorithms. One without any is an answer as well: the issuer has withdrawn them all.
func parseKeys(answer []byte, accepted []jose.SignatureAlgorithm) (*keySet, error) {
	if len(answer) > maxAnswer {
		return nil, fmt.Errorf("the JWK set has more than %d bytes", maxAnswer)
	}
	var doc struct {
		Keys json.RawMessage `json:"keys"` // null is a list without any: so programs write one
	}
	if err := json.Unmarshal(answer, &doc); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", err)
	}
	if doc.Keys == nil {
		return nil, errors.New("not a JWK set: it has no list of keys")
	}
	var keys []json.RawMessage
	if err := json.Unmarshal(doc.Keys, &keys); err != nil {
		return nil, fmt.Errorf("not a JWK set: %w", err)
	}
	if len(keys) > maxKeys {
		return nil, fmt.Errorf("the JWK set has %d keys, the limit is %d", len(keys), maxKeys)
	}
	set := &keySet{answer: answer}
	for _, raw := range keys {
		k, ok := parseKey(raw, accepted)
		// One that is there twice is one: its withdrawal must end all that it signed.
		if !ok || slices.ContainsFunc(set.keys, func(known *key) bool { return known.print == k.print }) {
			set.passed++
			continue
		}
		set.keys = append(set.keys, k)
	}
	return set, nil
}

// parseKey reads a JWK; false if it is not for what is accepted, or damaged. An issuer that begins to use another kind of key is not to take its others along.
func parseKey(raw []byte, accepted []jose.SignatureAlgorithm) (*key, bool) {
	var jwk jose.JSONWebKey
	if err := json.Unmarshal(raw, &jwk); err != nil || !jwk.Valid() || !jwk.IsPublic() || jwk.Use != "" && jwk.Use != "sig" {
		return nil, false
	}
	k := &key{id: jwk.KeyID, public: jwk.Key, withdrawn: make(chan struct{})}
	for _, alg := range algorithmsOf(jwk.Key) {
		if slices.Contains(accepted, alg) && (jwk.Algorithm == "" || jwk.Algorithm == string(alg)) {
			k.algorithms = append(k.algorithms, alg)
		}
	}
	if len(k.algorithms) == 0 || len(k.id) > maxToken {
		return nil, false
	}
	thumb, err := jwk.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, false
	}
	k.print = sha256.Sum256(append(thumb, k.id+"\x00"+jwk.Algorithm...))
	return k, true
}

// algorithmsOf returns the algorithms of signatures that a public key is for; none for what is not a public key.
func algorithmsOf(public any) []jose.SignatureAlgorithm {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits >= minRSA && bits <= maxRSA {
			return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}
		}
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return []jose.SignatureAlgorithm{jose.ES256}
		case elliptic.P384():
			return []jose.SignatureAlgorithm{jose.ES384}
		case elliptic.P521():
			return []jose.SignatureAlgorithm{jose.ES512}
		}
	case ed25519.PublicKey:
		return []jose.SignatureAlgorithm{jose.EdDSA}
	}
	return nil
}

// errNoKeyID is what a token without a key's id meets where several keys could have signed it.
var errNoKeyID = errors.New("it does not say which key signed it (kid), and the issuer has several")

// find returns the key of an id for an algorithm; nil if there is none. Without an id it is the only one for the algorithm.
func (s *keySet) find(id string, alg jose.SignatureAlgorithm) (found *key, err error) {
	if s == nil {
		return nil, nil
	}
	for _, k := range s.keys {
		if id != "" && k.id != id || !slices.Contains(k.algorithms, alg) {
			continue
		}
		if found != nil && id == "" {
			return nil, errNoKeyID
		}
		found = k
	}
	return found, nil
}

// count returns how many keys there are.
func (s *keySet) count() int {
	if s == nil {
		return 0
	}
	return len(s.keys)
}

// takeOver makes a set the successor of another one: keys of both stay the same, those of former alone are withdrawn.
func (s *keySet) takeOver(former *keySet) {
	if former == nil {
		return
	}
	for _, old := range former.keys {
		i := slices.IndexFunc(s.keys, func(k *key) bool { return k.print == old.print })
		if i < 0 {
			close(old.withdrawn)
			continue
		}
		s.keys[i].withdrawn = old.withdrawn
	}
}
