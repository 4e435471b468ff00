package principal_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"strings"
	"testing"

	"scribe/internal/transport/principal"
)

func TestOfCertificate(t *testing.T) {
	for _, c := range []struct {
		title, name string
		units, uris []string
		kind        principal.Kind
		want        string // the name, or a part of the error of kind Anonymous
	}{
		{"no kind", "ada", nil, nil, principal.Client, "ada"},
		{"a unit of somebody else's", "ada", []string{"operator", "Sales"}, nil, principal.Client, "ada"},
		{"a member", "n1", []string{"Sales", "scribe:member"}, nil, principal.Member, "n1"},
		{"an operator", "ada", []string{"scribe:operator"}, nil, principal.Operator, "ada"},
		{"the same twice", "h", []string{"scribe:agent", "scribe:agent"}, nil, principal.Agent, "h"},
		{"an id", "ignored", nil, []string{"spiffe://example.org/ns/web/sa/api"}, principal.Client, "spiffe://example.org/ns/web/sa/api"},
		{"an id with a kind", "", nil, []string{"spiffe://example.org/scribe/agent/web1"}, principal.Agent, "spiffe://example.org/scribe/agent/web1"},
		{"an id and a unit", "", []string{"scribe:operator"}, []string{"spiffe://example.org/ns/ops"}, principal.Operator, "spiffe://example.org/ns/ops"},
		{"other URIs", "ada", nil, []string{"https://example.org/a"}, principal.Client, "ada"},

		{"two kinds", "ada", []string{"scribe:operator", "scribe:client"}, nil, principal.Anonymous, "two kinds, operator and client"},
		{"two kinds, one in the id", "", []string{"scribe:member"}, []string{"spiffe://e/scribe/agent/a"}, principal.Anonymous, "two kinds, agent and member"},
		{"an unknown kind", "ada", []string{"scribe:root"}, nil, principal.Anonymous, `invalid kind "root"`},
		{"anonymous", "ada", []string{"scribe:anonymous"}, nil, principal.Anonymous, `invalid kind "anonymous"`},
		{"an unknown kind in an id", "", nil, []string{"spiffe://e/scribe/root/a"}, principal.Anonymous, `invalid kind "root"`},
		{"an id without a name", "", nil, []string{"spiffe://e/scribe/member"}, principal.Anonymous, "no name"},
		{"two ids", "", nil, []string{"spiffe://e/a", "spiffe://e/b"}, principal.Anonymous, "several SPIFFE ids"},
		{"nobody", "", nil, nil, principal.Anonymous, "neither a common name"},
		{"a line", "ada\nroot", nil, nil, principal.Anonymous, "can't be printed"},
		{"a right-to-left mark", "ada\u202e", nil, nil, principal.Anonymous, "can't be printed"},
		{"a long name", strings.Repeat("a", 256), nil, nil, principal.Anonymous, "the limit is 255"},
	} {
		t.Run(c.title, func(t *testing.T) {
			cert := &x509.Certificate{Subject: pkix.Name{CommonName: c.name, OrganizationalUnit: c.units}}
			for _, text := range c.uris {
				u, err := url.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				cert.URIs = append(cert.URIs, u)
			}
			p, err := principal.OfCertificate(cert)
			if c.kind == principal.Anonymous {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%+v, %v: want %q", p, err, c.want)
				}
			} else if want := (principal.Principal{Kind: c.kind, Name: c.want}); err != nil || p != want {
				t.Errorf("%+v, %v: want %+v", p, err, want)
			}
		})
	}
}
