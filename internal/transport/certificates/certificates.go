// Package certificates makes the certificates of a cell whose people have no public key infrastructure: an authority, and what it signs. Keys are
// ECDSA on P-256. docs/security.md says what the names in them mean.
package certificates

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"scribe/internal/transport/principal"
)

// Pair is a certificate and its key, both in PEM.
type Pair struct{ Cert, Key []byte }

// Authority signs certificates.
type Authority struct{ pair tls.Certificate }

// backdate is how much earlier than now a certificate is valid: clocks differ.
const backdate = 5 * time.Minute

// NewAuthority makes an authority whose certificate says its name.
func NewAuthority(name string, now time.Time, lifetime time.Duration) (Pair, error) {
	if err := checkName(name); err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return sign(template, nil)
}

// LoadAuthority reads an authority's files.
func LoadAuthority(certFile, keyFile string, now time.Time) (*Authority, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("authority %s with key %s: %w", certFile, keyFile, err)
	}
	switch {
	case !pair.Leaf.IsCA:
		return nil, fmt.Errorf("%s is not the certificate of an authority: it may not sign others", certFile)
	case now.After(pair.Leaf.NotAfter):
		return nil, fmt.Errorf("the authority %s expired at %s: make a new one", certFile, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return &Authority{pair}, nil
}

// Request says what a certificate is to be.
type Request struct {
	// Name is the common name.
	Name string
	// Kind is the kind of principal.
	Kind principal.Kind
	// Server makes it a server's as well, for Hosts: DNS names and IP addresses. Those of the local host are always among them.
	Server bool
	Hosts  []string
	// SPIFFE is an id of the form spiffe://DOMAIN/PATH; empty for none.
	SPIFFE string
	// Now and Lifetime say when it is valid.
	Now      time.Time
	Lifetime time.Duration
}

// template returns the certificate before it is signed.
func (r *Request) template() (*x509.Certificate, error) {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: r.Name, OrganizationalUnit: []string{r.Kind.Unit()}}, NotBefore: r.Now.Add(-backdate), NotAfter: r.Now.Add(r.Lifetime),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	errs := []error{checkName(r.Name)}
	if r.Server {
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		for _, host := range append(slices.Clone(r.Hosts), "localhost", "127.0.0.1", "::1") {
			errs = append(errs, addHost(c, host))
		}
		if r.Kind == principal.Member {
			c.DNSNames = append(c.DNSNames, principal.MemberHost)
		}
	}
	if r.SPIFFE != "" {
		id, err := url.Parse(r.SPIFFE)
		if err != nil || id.Scheme != "spiffe" || id.Host == "" || strings.Trim(id.Path, "/") == "" || id.RawQuery+id.Fragment != "" || id.User != nil {
			errs = append(errs, fmt.Errorf("invalid SPIFFE id %q: want spiffe://DOMAIN/PATH", r.SPIFFE))
		} else {
			c.URIs = []*url.URL{id}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	_, err := principal.OfCertificate(c)
	return c, err
}

var hostName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*$`)

// addHost adds a name or an address that a server is reached at.
func addHost(c *x509.Certificate, host string) error {
	if ip := net.ParseIP(strings.Trim(host, "[]")); ip != nil {
		if !slices.ContainsFunc(c.IPAddresses, ip.Equal) {
			c.IPAddresses = append(c.IPAddresses, ip)
		}
		return nil
	}
	if len(host) > 253 || !hostName.MatchString(host) {
		return fmt.Errorf("invalid host %q: want a DNS name or an IP address, without a port", host)
	}
	if !slices.Contains(c.DNSNames, host) {
		c.DNSNames = append(c.DNSNames, host)
	}
	return nil
}

// certificateName is what a certificate, and its files, can be called.
var certificateName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@ -]{0,62}$`)

func checkName(name string) error {
	if !certificateName.MatchString(name) {
		return fmt.Errorf("invalid name %q: want up to 63 letters, digits, spaces, '.', '_', '@' and '-'", name)
	}
	return nil
}

// Issue signs a certificate.
func (a *Authority) Issue(r Request) (Pair, error) {
	c, err := r.template()
	if err != nil {
		return Pair{}, err
	}
	if end := a.pair.Leaf.NotAfter; c.NotAfter.After(end) {
		return Pair{}, fmt.Errorf("the certificate would be valid until %s, and its authority expires at %s: want fewer days, or a new authority",
			c.NotAfter.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339))
	}
	return sign(c, &a.pair)
}

// sign makes a key, and a certificate for it that the issuer signs; nil signs itself.
func sign(template *x509.Certificate, issuer *tls.Certificate) (p Pair, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) //nolint:forbidigo // a key is never drawn from a seed
	if err != nil {
		return p, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) //nolint:forbidigo // as the key
	if err != nil {
		return p, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	parent, by := template, any(key)
	if issuer != nil {
		parent, by = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by) //nolint:forbidigo // as the key
	if err != nil {
		return p, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return p, err
	}
	p.Cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	p.Key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	return p, nil
}

// Write writes a pair to new files, the key for its owner alone. It overwrites nothing: a key that is gone can't be made again.
func (p Pair) Write(certFile, keyFile string) error {
	for _, path := range []string{certFile, keyFile} {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s is there already: move it away, or give another name", path)
		}
	}
	if err := writeNew(keyFile, p.Key, 0o600); err != nil {
		return err
	}
	if err := writeNew(certFile, p.Cert, 0o644); err != nil {
		return errors.Join(err, os.Remove(keyFile))
	}
	return nil
}

// writeNew writes a file that must not exist.
func writeNew(path string, text []byte, perm os.FileMode) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// Read returns the certificates of a PEM file, the first one first. Keys in it are passed over.
func Read(path string) (list []*x509.Certificate, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if text = rest; block.Type != "CERTIFICATE" {
			continue
		}
		c, perr := x509.ParseCertificate(block.Bytes)
		err = cmp.Or(err, perr)
		if perr == nil {
			list = append(list, c)
		}
	}
	if err == nil && len(list) == 0 {
		err = errors.New("it has no certificate in PEM")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}
