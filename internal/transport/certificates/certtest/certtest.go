// Package certtest makes certificates for tests.
package certtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"scribe/internal/transport/certificates"
	"scribe/internal/transport/principal"
)

// Authority signs the certificates of a test.
type Authority struct {
	tb        testing.TB
	dir       string
	issued    int
	authority *certificates.Authority
	now       time.Time
	// File has its certificate.
	File string
}

// New makes an authority whose certificates are valid for a year from a time on.
func New(tb testing.TB, name string, now time.Time) *Authority {
	tb.Helper()
	a := &Authority{tb: tb, dir: tb.TempDir(), now: now}
	pair, err := certificates.NewAuthority(name, now, 10*365*24*time.Hour)
	if err != nil {
		tb.Fatal(err)
	}
	a.File = filepath.Join(a.dir, "ca.pem")
	key := filepath.Join(a.dir, "ca.key")
	if err := pair.Write(a.File, key); err != nil {
		tb.Fatal(err)
	}
	if a.authority, err = certificates.LoadAuthority(a.File, key, now); err != nil {
		tb.Fatal(err)
	}
	return a
}

// Issue makes a certificate, and returns its files. Times that are not given are those of the authority, and a year.
func (a *Authority) Issue(r certificates.Request) (cert, key string) {
	a.tb.Helper()
	if r.Now.IsZero() {
		r.Now = a.now
	}
	if r.Lifetime == 0 {
		r.Lifetime = 365 * 24 * time.Hour
	}
	pair, err := a.authority.Issue(r)
	if err != nil {
		a.tb.Fatal(err)
	}
	a.issued++
	cert, key = filepath.Join(a.dir, fmt.Sprintf("%d.pem", a.issued)), filepath.Join(a.dir, fmt.Sprintf("%d.key", a.issued))
	if err := pair.Write(cert, key); err != nil {
		a.tb.Fatal(err)
	}
	return cert, key
}

// Server makes the certificate of a member of the cell on this host.
func (a *Authority) Server(name string, hosts ...string) (cert, key string) {
	a.tb.Helper()
	return a.Issue(certificates.Request{Name: name, Kind: principal.Member, Server: true, Hosts: hosts})
}

// Client makes the certificate of a client.
func (a *Authority) Client(name string, kind principal.Kind) (cert, key string) {
	a.tb.Helper()
	return a.Issue(certificates.Request{Name: name, Kind: kind})
}

// Join writes the contents of files to one, as those do who replace certificates.
func Join(tb testing.TB, to string, from ...string) {
	tb.Helper()
	var all []byte
	for _, path := range from {
		text, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, text...)
	}
	if err := os.WriteFile(to, all, 0o600); err != nil {
		tb.Fatal(err)
	}
}
