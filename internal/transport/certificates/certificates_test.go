package certificates_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/internal/transport/certificates"
	"scribe/internal/transport/principal"
)

const year = 365 * 24 * time.Hour

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newAuthority makes an authority in a folder.
func newAuthority(t *testing.T, lifetime time.Duration) (*certificates.Authority, string) {
	t.Helper()
	pair, err := certificates.NewAuthority("scribe eu", begin, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "ca.key")
	if err := pair.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	a, err := certificates.LoadAuthority(cert, key, begin)
	if err != nil {
		t.Fatal(err)
	}
	return a, cert
}

func issue(t *testing.T, a *certificates.Authority, r certificates.Request) *x509.Certificate {
	t.Helper()
	r.Now, r.Lifetime = begin, year
	pair, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "c.pem")
	if err := pair.Write(path, filepath.Join(t.TempDir(), "c.key")); err != nil {
		t.Fatal(err)
	}
	list, err := certificates.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return list[0]
}

// TestIssue: what is issued is for the hosts, the purposes and the time that were asked for, and is of its authority.
func TestIssue(t *testing.T) {
	a, file := newAuthority(t, 10*year)
	ca, err := certificates.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca[0])
	verify := func(c *x509.Certificate, at time.Time, host string, usage x509.ExtKeyUsage) error {
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, DNSName: host, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	server := issue(t, a, certificates.Request{Name: "n1", Kind: principal.Member, Server: true, Hosts: []string{"n1.example.net", "10.0.0.1"}})
	for _, host := range []string{"n1.example.net", "10.0.0.1", "localhost", "127.0.0.1", "::1", principal.MemberHost} {
		if err := verify(server, begin, host, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := verify(server, begin, "n2.example.net", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("it is for other hosts")
	}
	if err := verify(server, begin, "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("towards others: %v", err)
	}
	if err := verify(server, begin.Add(year+time.Minute), "", x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("it does not expire")
	}
	client := issue(t, a, certificates.Request{Name: "billing", Kind: principal.Client})
	if verify(client, begin, "", x509.ExtKeyUsageServerAuth) == nil || verify(client, begin, "", x509.ExtKeyUsageClientAuth) != nil {
		t.Error("a client's certificate is for clients only")
	}
	agent := issue(t, a, certificates.Request{Name: "web1", Kind: principal.Agent, Server: true})
	if agent.VerifyHostname(principal.MemberHost) == nil {
		t.Error("an agent's certificate has the name of members")
	}
	id := issue(t, a, certificates.Request{Name: "api", Kind: principal.Client, SPIFFE: "spiffe://example.org/ns/web"})
	for c, want := range map[*x509.Certificate]principal.Principal{
		server: {Kind: principal.Member, Name: "n1"}, client: {Kind: principal.Client, Name: "billing"}, agent: {Kind: principal.Agent, Name: "web1"},
		id: {Kind: principal.Client, Name: "spiffe://example.org/ns/web"},
	} {
		if p, err := principal.OfCertificate(c); err != nil || p != want {
			t.Errorf("%+v, %v: want %+v", p, err, want)
		}
	}
}

func TestIssueMistakes(t *testing.T) {
	a, _ := newAuthority(t, year/2)
	for name, c := range map[string]struct {
		request certificates.Request
		want    string
	}{
		"a path for a name":        {certificates.Request{Name: "../n1", Kind: principal.Client}, "invalid name"},
		"no name":                  {certificates.Request{Kind: principal.Client}, "invalid name"},
		"a port":                   {certificates.Request{Name: "n1", Kind: principal.Member, Server: true, Hosts: []string{"n1:7420"}}, `invalid host "n1:7420"`},
		"no id":                    {certificates.Request{Name: "a", Kind: principal.Client, SPIFFE: "https://example.org/a"}, "invalid SPIFFE id"},
		"an id of another kind":    {certificates.Request{Name: "a", Kind: principal.Client, SPIFFE: "spiffe://e/scribe/member/a"}, "two kinds"},
		"longer than the issuer's": {certificates.Request{Name: "a", Kind: principal.Client}, "its authority expires at 2026-07"},
	} {
		t.Run(name, func(t *testing.T) {
			c.request.Now, c.request.Lifetime = begin, year
			if _, err := a.Issue(c.request); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %q", err, c.want)
			}
		})
	}
}

// TestLoadAuthority: only what may sign is an authority.
func TestLoadAuthority(t *testing.T) {
	a, _ := newAuthority(t, 10*year)
	pair, err := a.Issue(certificates.Request{Name: "n1", Kind: principal.Member, Now: begin, Lifetime: year})
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(t.TempDir(), "c.pem"), filepath.Join(t.TempDir(), "c.key")
	if err := pair.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	if _, err := certificates.LoadAuthority(cert, key, begin); err == nil || !strings.Contains(err.Error(), "not the certificate of an authority") {
		t.Errorf("a member's certificate: %v", err)
	}
	old, err := certificates.NewAuthority("old", begin, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "c.pem"), filepath.Join(t.TempDir(), "c.key")
	if err := old.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	if _, err := certificates.LoadAuthority(cert, key, begin.Add(2*time.Hour)); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("an expired one: %v", err)
	}
	if _, err := certificates.LoadAuthority(cert, cert, begin); err == nil {
		t.Error("a certificate for a key")
	}
}

// TestWrite: a key is for its owner alone, and nothing is overwritten.
func TestWrite(t *testing.T) {
	pair, err := certificates.NewAuthority("ca", begin, year)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	if err := pair.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode: %v, %v", info.Mode(), err)
	}
	before, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	for _, paths := range [][2]string{{cert, other}, {other, key}} {
		if err := pair.Write(paths[0], paths[1]); err == nil || !strings.Contains(err.Error(), "is there already") {
			t.Errorf("over %v: %v", paths, err)
		}
	}
	if after, err := os.ReadFile(key); err != nil || string(after) != string(before) {
		t.Error("the key changed")
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("half a pair was written")
	}
}
