package principal

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// unitPrefix begins the organizational units that say of which kind a certificate's owner is. Other units say nothing: authorities that also
// sign for others use words such as "operator" for purposes of their own.
const unitPrefix = "scribe:"

// spiffePrefix begins the path of SPIFFE ids that say the same: spiffe://DOMAIN/scribe/KIND/NAME.
const spiffePrefix = "/scribe/"

// maxName bounds a name in bytes.
const maxName = 255

// Kinds are the kinds that a certificate can give, from the least to the most.
var Kinds = []Kind{Client, Agent, Operator, Member}

// Unit returns the organizational unit that says so.
func (k Kind) Unit() string { return unitPrefix + k.String() }

// ParseKind reads the word of a kind that a certificate can give.
func ParseKind(word string) (Kind, error) {
	for _, k := range Kinds {
		if k.String() == word {
			return k, nil
		}
	}
	return Anonymous, fmt.Errorf("invalid kind %q: want client, agent, operator or member", word)
}

// OfCertificate returns whom a certificate names. The caller has verified it. A certificate without a kind is a client's; one with two kinds is
// refused, since either could be a mistake.
func OfCertificate(c *x509.Certificate) (Principal, error) {
	id, err := spiffeID(c)
	if err != nil {
		return Principal{}, err
	}
	p := Principal{Kind: Anonymous, Name: c.Subject.CommonName}
	if id != nil {
		p.Name = id.String()
		if rest, ok := strings.CutPrefix(id.Path, spiffePrefix); ok {
			word, name, _ := strings.Cut(rest, "/")
			if p.Kind, err = ParseKind(word); err != nil {
				return Principal{}, fmt.Errorf("the SPIFFE id %q: %w", id, err)
			}
			if name == "" {
				return Principal{}, fmt.Errorf("the SPIFFE id %q has no name after the kind", id)
			}
		}
	}
	for _, unit := range c.Subject.OrganizationalUnit {
		word, ok := strings.CutPrefix(unit, unitPrefix)
		if !ok {
			continue
		}
		kind, err := ParseKind(word)
		if err != nil {
			return Principal{}, fmt.Errorf("the organizational unit %q: %w", unit, err)
		}
		if p.Kind != Anonymous && p.Kind != kind {
			return Principal{}, fmt.Errorf("it is a certificate of two kinds, %s and %s: want one", p.Kind, kind)
		}
		p.Kind = kind
	}
	if p.Kind == Anonymous {
		p.Kind = Client
	}
	if err := checkName(p.Name); err != nil {
		return Principal{}, err
	}
	return p, nil
}

// spiffeID returns the certificate's SPIFFE id; nil if it has none. The standard allows one.
func spiffeID(c *x509.Certificate) (id *url.URL, err error) {
	for _, u := range c.URIs {
		if !strings.EqualFold(u.Scheme, "spiffe") {
			continue
		}
		if id != nil {
			return nil, errors.New("it has several SPIFFE ids: want one")
		}
		id = u
	}
	return id, nil
}

// checkName reports whether a name can be written into logs and compared by people.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it has neither a common name nor a SPIFFE id")
	case len(name) > maxName:
		return fmt.Errorf("its name has %d bytes, the limit is %d", len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("its name %q has characters that can't be printed", name)
	}
	return nil
}

// MemberHost is a DNS name in the certificates of nodes, beside those of their hosts. The etcd inside nodes takes only certificates that have it: etcd
// looks at names, not at kinds.
const MemberHost = "scribe-member"
